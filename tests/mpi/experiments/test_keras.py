"""Keras' experiments train on two workers and two memory devices: the digits, and ResNet50 on a folder of images."""

import json
import sys
from pathlib import Path

import pytest

from experiments.gpt.rows import read_run
from experiments.keras_digits.settings import DigitsTraining
from tests.support.claims import read_reports, require_held
from tests.support.launch import REPOSITORY, complete, mpirun

HERE = Path(__file__).parent
NUM_WORKERS = 2
DIGITS = [str(REPOSITORY / "experiments" / "train_keras_digits.py"), "--epochs", "6"]
LEAST_ACCURACY = 0.97
NUM_STEPS = 6 * (1437 // DigitsTraining.batch)
GRADIENT_BYTES = 4 * 23_946


def trained(*command: object) -> str:
    """The output of a script on two workers and two memory devices."""
    environ = {"COARSE_PARTITION": "2:2"}
    completed = mpirun(4, *command, env=environ, timeout_s=240.0, preloaded="tensorflow")
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """What the script printed, and the documents of both workers."""
    folder = tmp_path_factory.mktemp("digits")
    return trained(*DIGITS, "--out", folder), read_run(folder, "coarse")


def test_two_workers_learn_the_digits_and_end_alike(digits):
    printed, documents = digits
    summaries = [document["summary"] for document in documents]
    assert len(summaries) == NUM_WORKERS
    assert summaries[0]["test_accuracy"] >= LEAST_ACCURACY
    for name in ("test_accuracy", "weights_crc32", "steps", "kind"):
        assert summaries[0][name] == summaries[1][name]
    assert documents[0]["history"] == documents[1]["history"]
    assert f"test accuracy {summaries[0]['test_accuracy']:.2%} on 360 digits (measured)" in printed
    assert printed.count("equal on all workers") == 1


def test_every_step_pushed_its_gradients(digits):
    for document in digits[1]:
        summary = document["summary"]
        assert summary["steps"] == NUM_STEPS
        assert summary["pushes"] >= NUM_STEPS
        assert summary["pushed_bytes"] >= NUM_STEPS * GRADIENT_BYTES


def test_the_losses_are_those_of_one_process(digits, tmp_path):
    alone = complete([sys.executable, *DIGITS, "--strategy", "mirrored", "--out", str(tmp_path)], timeout_s=120.0)
    assert alone.returncode == 0, alone.stderr
    (document,) = read_run(tmp_path, "mirrored")
    assert digits[1][0]["history"]["loss"] == pytest.approx(document["history"]["loss"], rel=1e-4)


BODIES = {"small": (346, 330), "ResNet50": (23_608_202, 23_555_082)}
"""Parameters of the script's model with this body and ten classes, and those of them that are trained."""


@pytest.fixture(scope="module", params=BODIES)
def images(request, tmp_path_factory):
    """The folder that a job of the script on the digits left behind, what it printed, and its model's parameters."""
    folder = tmp_path_factory.mktemp("images")
    return folder, trained(HERE / "keras_images.py", request.param, folder), *BODIES[request.param]


@pytest.mark.test_all
def test_resnet50_trains_on_a_folder_of_images(images):
    folder, printed, num_parameters, num_trained = images
    for rank in range(NUM_WORKERS):
        document = json.loads((folder / "rows" / f"coarse-worker{rank}.json").read_text())
        summary = document["summary"]
        assert [step["step"] for step in document["steps"]] == [0, 1, 2]
        assert [summary[name] for name in ("workers", "num_classes", "num_train", "num_val")] == [2, 10, 1437, 360]
        assert summary["pushed_bytes"] >= 3 * 4 * num_trained
        assert 0 <= summary["validation"]["accuracy"] <= 1
    assert printed.count(f"ResNet50, coarse, workers: 2; {num_parameters:,} parameters, 10 classes") == 1
    assert printed.count("step 3/3") == 1


@pytest.mark.test_all
def test_one_rank_saves_the_weights(images):
    folder, _, _, num_trained = images
    (path,) = (folder / "checkpoints").iterdir()
    assert path.name == "epoch-001.weights.h5"
    assert path.stat().st_size > 4 * num_trained


@pytest.mark.test_all
def test_the_loader_keeps_its_claims_on_every_worker(images):
    reports = read_reports(images[0], NUM_WORKERS)
    assert len(reports) == 5
    require_held(reports, reports)
