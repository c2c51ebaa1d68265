"""Keras' fit goes on where it was when ranks are killed, with the bits of a run that nobody disturbed."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.launch import Completed, complete

PROGRAM = Path(__file__).parent / "keras_training.py"

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")


def coarse_run(folder: Path, *words: str, options: tuple[str, ...] = (), num_workers: int = 2) -> Completed:
    """The program under `coarse run`."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "coarse", "run", "--workers", str(num_workers), "--devices", "1", *options]
    return complete([*command, str(PROGRAM), str(folder), *words], timeout_s=200)


def digests(done: Completed) -> list[str]:
    return sorted(re.findall(r"worker \d+: \w{64}", done.stdout))


KINDS = [
    "arrays", "steps", "finite steps", "unknown length", "keras draws", "eager", "eager draws", "three at once",
    "each third",
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("shuffled", ("0:1", "1:6", "test:6")),
        *(pytest.param(kind, ("1:2", "0:4", "test:2", "0:6", "test:6"), marks=pytest.mark.test_all) for kind in KINDS),
    ],
)
def test_whatever_the_data_the_bits_are_the_same(tmp_path, kind, kills):
    quiet = coarse_run(tmp_path / "quiet", kind)
    assert quiet.returncode == 0, quiet.stderr
    assert len(digests(quiet)) == 2
    done = coarse_run(tmp_path, kind, *kills, options=("--restarts", "9"))
    assert done.returncode == 0, done.stderr
    assert digests(done) == digests(quiet)
    assert "does not repeat itself" not in done.stderr
    num_killed = len(list(tmp_path.glob("*-*")))
    assert done.stderr.count("the job starts again") == num_killed >= 2, done.stderr


@pytest.mark.test_all
def test_three_workers_go_on_whose_order_of_sums_is_fixed(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('policy = "devices"\n')
    options = ("--config", str(config))
    quiet = coarse_run(tmp_path / "quiet", "shuffled", options=options, num_workers=3)
    assert quiet.returncode == 0, quiet.stderr
    kills = ("0:1", "1:6", "test:2", "2:9")
    done = coarse_run(tmp_path, "shuffled", *kills, options=(*options, "--restarts", "9"), num_workers=3)
    assert done.returncode == 0, done.stderr
    assert digests(done) == digests(quiet)
    assert len(digests(done)) == 3


REFUSED = {
    "generator": "its elements come from a generator of Python's",
    "draws in data": "it draws from TensorFlow's stateful random operations (RandomStandardNormal)",
    "stateful draws": "the step of training draws by TensorFlow's stateful operation RandomStandardNormal",
    "no seed": "call keras.utils.set_random_seed(NUMBER) before CoarseStrategy()",
    "backup": "leave BackupAndRestore out",
    "twice": "a job commits one call of fit",
}


@pytest.mark.test_all
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_gone_on_from_is_refused(tmp_path, kind):
    done = coarse_run(tmp_path, kind, options=("--restarts", "1"))
    assert done.returncode == 1
    assert "ConfigError: Resumable" in done.stderr
    assert REFUSED[kind] in done.stderr


@pytest.mark.test_all
def test_nothing_keeps_what_is_committed(tmp_path):
    done = coarse_run(tmp_path, "shuffled")
    assert done.returncode == 0
    assert done.stderr.count("nothing keeps what Resumable commits") == 1
