"""The training on the digits: its settings, its data, and the two lines by which the strategies differ."""

import dataclasses

import numpy as np
import pytest

from coarse.errors import ConfigError
from experiments.demo import DemoError
from experiments.demo_tf import REFERENCE, RUNS, check, comparison, differences_of, run_command, swap
from experiments.keras_digits.data import NUM_CLASSES, NUM_TEST, load_digits
from experiments.keras_digits.figures import draw_comparison
from experiments.keras_digits.settings import DigitsTraining, check_batch
from experiments.train_keras_digits import main, parse_arguments, settings_from

OTHER = next(name for name in RUNS if name != REFERENCE)


def run(losses, accuracy=0.98):
    """What a worker of the demo leaves behind."""
    summary = {"test_accuracy": accuracy, "pushes": 3, "kind": "measured"}
    return {"history": {"loss": losses, "accuracy": [0.5] * len(losses)}, "summary": summary}


@pytest.fixture
def runs():
    return {REFERENCE: run([2.0, 1.0]), OTHER: run([2.0, 1.00001])}


def test_a_user_changes_two_lines():
    changed = [line for line in swap() if line[0] in "+-" and not line.startswith(("+++", "---"))]
    assert sorted(line[:1] for line in changed) == ["+", "+", "-", "-"]
    assert [line[1:].strip() for line in changed] == [
        "import tensorflow as tf",
        "from tf_strategy import CoarseStrategy",
        "strategy = tf.distribute.MirroredStrategy()",
        "strategy = CoarseStrategy()",
    ]


def test_options_reach_the_settings_and_defaults_are_theirs():
    assert settings_from(parse_arguments([])) == DigitsTraining()
    given = settings_from(parse_arguments(["--strategy", "none", "--epochs", "2", "--batch", "32", "--seed", "7"]))
    assert given == DigitsTraining(strategy="none", epochs=2, batch=32, seed=7)


@pytest.mark.parametrize(
    ("name", "value"), [("epochs", 0), ("batch", 0), ("seed", -1), ("learning_rate", 0.0), ("strategy", "horovod")]
)
def test_a_setting_that_cannot_work_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=str(value)) as raised:
        dataclasses.replace(DigitsTraining(), **{name: value})
    assert raised.value.key == name


def test_the_script_ends_in_one_line_where_an_option_is_wrong():
    with pytest.raises(SystemExit, match=r"^train_keras_digits\.py: --epochs must be at least 1, got 0$"):
        main(["--epochs", "0"])


@pytest.mark.parametrize(("batch", "num_workers"), [(63, 2), (1, 2), (1438, 2)])
def test_a_batch_that_workers_cannot_share_is_refused_on_every_rank(batch, num_workers):
    check_batch(64, 1437, 0, num_workers)
    with pytest.raises(ConfigError, match=rf"^rank 1: .* multiple of {num_workers}, .* but is {batch}; give another"):
        check_batch(batch, 1437, 1, num_workers)


def test_the_test_set_is_apart_and_a_seed_decides_it():
    digits, again, other = load_digits(1), load_digits(1), load_digits(2)
    assert len(digits.test.labels) == NUM_TEST
    assert digits.train.pixels.shape == (1797 - NUM_TEST, 8, 8, 1)
    assert digits.train.pixels.dtype == np.float32
    assert digits.train.pixels.min() == 0
    assert digits.train.pixels.max() == 1
    assert set(digits.test.labels.tolist()) == set(range(NUM_CLASSES))
    assert np.array_equal(digits.test.pixels, again.test.pixels)
    assert not np.array_equal(digits.test.labels, other.test.labels)


def test_only_coarse_runs_by_the_launcher(tmp_path):
    assert run_command("mirrored", 5, tmp_path)[1].endswith("train_keras_digits.py")
    launched = run_command("coarse", 5, tmp_path)
    assert launched[1:8] == ["-m", "coarse", "run", "--workers", "2", "--devices", "2"]
    assert launched[launched.index("--strategy") + 1] == "coarse"


def test_the_demo_passes_what_agrees_and_shows_every_epoch(runs, tmp_path):
    check(runs)
    assert differences_of(runs) == pytest.approx([0.0, 1e-5])
    assert comparison(runs).row_count == 2 + 4
    draw_comparison(runs, REFERENCE, 1e-4, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("losses", "accuracy", "words"),
    [([2.0, 1.01], 0.98, r"at most 1e-04 .* by 1\.0e-02"), ([2.0, float("nan")], 0.98, "by inf"),
     ([2.0, 1.0], 0.96, r"97% of the digits .* but 96\.00% are")],
)  # fmt: skip
def test_the_demo_fails_where_the_training_is_another_or_too_little_is_learnt(runs, losses, accuracy, words):
    with pytest.raises(DemoError, match=words):
        check({REFERENCE: runs[REFERENCE], OTHER: run(losses, accuracy)})
