"""The training on folders of images: what is found there, what is asked for, and the rate of every step."""

import dataclasses
import math

import numpy as np
import pytest
from PIL import Image

from coarse.errors import ConfigError
from experiments.keras_images.digits_folder import SIDE, write_digits
from experiments.keras_images.folder import ImageFolderError, read_folder
from experiments.keras_images.rates import SCHEDULES, highest_rate, rate_at, rates
from experiments.keras_images.report import (
    MOST_LINES,
    StepRecord,
    Summary,
    Validation,
    document,
    has_line,
    speed_of,
    step_line,
    summary_lines,
    validation_line,
)
from experiments.keras_images.settings import Augmentation, ImageTraining
from experiments.train_resnet50_keras import DIGITS, main, parse_arguments, settings_from


@pytest.fixture
def folder(tmp_path):
    """Two classes with two images to train on and one to validate with."""
    for part, count in (("train", 2), ("val", 1)):
        for name in ("cat", "ant"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (4, 4)).save(tmp_path / part / name / f"{number}.PNG")
    return tmp_path


# --- folders


def test_classes_and_images_are_in_the_order_of_their_names(folder):
    (folder / "train" / "ant" / "notes.txt").write_text("no image")
    images = read_folder(folder, 0)
    assert images.classes == ("ant", "cat")
    assert images.train.labels == (0, 0, 1, 1)
    wanted = [folder / "train" / name / f"{number}.PNG" for name in ("ant", "cat") for number in (0, 1)]
    assert images.train.paths == tuple(map(str, wanted))
    assert images.val.labels == (0, 1)


def test_a_folder_is_known_by_the_names_within_wherever_it_lies(folder, tmp_path_factory):
    elsewhere = folder.rename(tmp_path_factory.mktemp("other") / "images")
    found = read_folder(elsewhere, 0).digest()
    assert found == read_folder(elsewhere.rename(folder), 1).digest()
    (folder / "val" / "cat" / "0.PNG").rename(folder / "val" / "cat" / "9.PNG")
    assert read_folder(folder, 0).digest() != found


def test_a_folder_that_is_not_there_is_named_with_its_layout(folder):
    with pytest.raises(ImageFolderError, match=r"^rank 3: there is no folder .*/train; .*/<class>/, named .jpg"):
        read_folder(folder / "nowhere", 3)


def test_a_class_that_only_one_part_has_is_named(folder):
    (folder / "val" / "ant").rename(folder / "val" / "bee")
    with pytest.raises(ImageFolderError, match=r"^rank 1: class 'ant' has a folder in .*/train but none in .*/val; "):
        read_folder(folder, 1)


def test_a_class_without_an_image_is_named(folder):
    (folder / "val" / "cat" / "0.PNG").unlink()
    with pytest.raises(ImageFolderError, match=r"^rank 0: there is no .* in .*/val/cat; put some there"):
        read_folder(folder, 0)


def test_a_part_without_classes_is_named(folder):
    empty = folder / "empty"
    (empty / "train").mkdir(parents=True)
    with pytest.raises(ImageFolderError, match=r"in .*/empty/train/<class>; put some there"):
        read_folder(empty, 0)


def test_the_digits_become_a_folder_of_images(tmp_path):
    write_digits(tmp_path, seed=1)
    images = read_folder(tmp_path, 0)
    assert images.classes == tuple("0123456789")
    assert (len(images.train.paths), len(images.val.paths)) == (1437, 360)
    with Image.open(images.train.paths[0]) as image:
        pixels = np.asarray(image)
    assert pixels.shape == (SIDE, SIDE, 3)
    assert pixels.min() < 16
    assert pixels.max() > 200


# --- what is asked for


def test_options_reach_the_settings_and_defaults_are_theirs():
    assert settings_from(parse_arguments(["--data", "x"])) == ImageTraining()
    given = settings_from(parse_arguments(["--digits", "--mode", "dense", "--steps", "3", "--precision", "bfloat16"]))
    assert given == ImageTraining(mode="dense", steps=3, precision="bfloat16", augmentation=DIGITS)
    flipped = settings_from(parse_arguments(["--digits", "--flip"])).augmentation
    assert flipped == dataclasses.replace(DIGITS, flip=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mode", "ddp"), ("schedule", "linear"), ("precision", "int8"), ("epochs", 0), ("steps", 0), ("batch", 0),
     ("image_size", 31), ("seed", -1), ("learning_rate", 0.0), ("learning_rate", math.nan), ("warmup", 1.0)],
)  # fmt: skip
def test_a_setting_that_cannot_work_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=str(value)) as raised:
        dataclasses.replace(ImageTraining(), **{name: value})
    assert raised.value.key == name


@pytest.mark.parametrize("least_area", [0.0, 1.1])
def test_a_crop_keeps_some_of_the_image_and_no_more_than_all(least_area):
    with pytest.raises(ConfigError, match=r"--least-area must lie in \(0, 1\]"):
        Augmentation(least_area=least_area)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--digits", "--synthetic"], ["--synthetic"], ["--synthetic", "--steps", "2", "--flip"], ["--mode", "single"]],
)
def test_options_that_do_not_go_together_are_refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(arguments)
    assert "error: " in capsys.readouterr().err


def test_the_mode_of_coarse_run_must_be_the_script_s(monkeypatch, capsys):
    monkeypatch.setenv("COARSE_MODE", "dense")
    assert parse_arguments(["--digits"]).mode == "dense"
    assert parse_arguments(["--digits", "--mode", "single"]).mode == "single"
    with pytest.raises(SystemExit):
        parse_arguments(["--digits", "--mode", "coarse"])
    assert "COARSE_MODE=dense; leave one of them out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--data", "/nowhere"], r"rank 1: there is no folder /nowhere/train"), (["--digits", "--batch", "0"], "--batch")],
)
def test_the_script_ends_in_one_line_where_its_input_is_wrong(arguments, words, monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "1")
    with pytest.raises(SystemExit, match=rf"^train_resnet50_keras\.py: {words}"):
        main(arguments)


def test_steps_are_those_of_whole_batches_or_as_given():
    epochs = ImageTraining(epochs=3, batch=10)
    assert (epochs.steps_per_epoch(99), epochs.num_epochs) == (9, 3)
    steps = ImageTraining(epochs=3, batch=10, steps=5)
    assert (steps.steps_per_epoch(99), steps.num_epochs) == (5, 1)


# --- rates


def test_the_rate_is_in_proportion_to_the_batch():
    assert highest_rate(0.1, 256) == 0.1
    assert highest_rate(0.1, 64) == pytest.approx(0.025)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rate_grows_linearly_to_its_highest_and_never_again(schedule):
    plan = rates(100, 0.8, schedule, 0.1)
    assert plan.dtype == np.float32
    assert plan[:10] == pytest.approx([0.08 * (step + 1) for step in range(10)])
    assert plan[10] == pytest.approx(0.8)
    assert np.all(np.diff(plan[9:]) <= 0)
    assert np.all(plan > 0)


def test_a_cosine_is_halfway_at_half_of_its_steps_and_ends_near_zero():
    plan = rates(1000, 1.0, "cosine", 0.0)
    assert plan[0] == 1
    assert plan[500] == pytest.approx(0.5)
    assert plan[-1] < 1e-4


def test_thirds_fall_tenfold_after_epochs_30_60_and_80_of_90():
    found = [rate_at(epoch, 90, 1.0, "thirds", 0.0) for epoch in (29, 30, 59, 60, 79, 80, 89)]
    assert found == pytest.approx([1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_a_run_of_one_step_has_the_highest_rate():
    assert [rates(1, 0.3, schedule, 0.5).tolist() for schedule in SCHEDULES] == [pytest.approx([0.3])] * 3


# --- reports


def records(*seconds):
    return [StepRecord(step=step, loss=2.0 - step, step_s=step_s) for step, step_s in enumerate(seconds)]


def test_the_speed_leaves_the_first_steps_out_where_there_are_more():
    assert speed_of(records(90.0, 90.0, 2.0, 1.0, 2.0), batch=8) == (2.0, 4.0)
    assert speed_of(records(4.0), batch=8) == (4.0, 2.0)


@pytest.mark.parametrize("num_steps", [1, 3, 49, 50, 51, 1000, 5004])
def test_an_epoch_has_a_line_at_its_end_and_not_too_many(num_steps):
    lines = [step for step in range(num_steps) if has_line(step, num_steps)]
    assert lines[-1] == num_steps - 1
    assert min(num_steps, MOST_LINES // 2) <= len(lines) <= MOST_LINES + 1


def test_a_run_is_told_in_words_with_its_kind():
    found = Validation(epoch=0, accuracy=0.125, cross_entropy=None)
    assert validation_line(found) == "epoch 1: validation accuracy 12.50%, cross entropy not finite"
    assert step_line(records(2.0)[0], 9, 0.1, 8) == "step 1/9  loss 2.0000  rate 0.10000  4.0 images/s"
    summary = Summary(
        mode="coarse", workers=2, num_parameters=23_608_202, num_classes=10, num_train=1437, num_val=360, steps=2,
        loss=1.5, step_s=0.5, images_per_s=16.0, pushes=12, pushed_bytes=3456, validation=found,
    )  # fmt: skip
    assert summary_lines(summary) == [
        "ResNet50, coarse, workers: 2; 23,608,202 parameters, 10 classes, 1,437 images, 360 to validate",
        "2 steps; mean loss of the last epoch 1.5000; median step 500 ms, 16.0 images/s (measured)",
        "12 pushes by each worker, 3,456 bytes (counted)",
    ]
    synthetic = dataclasses.replace(summary, mode="single", num_train=0, pushes=0)
    assert summary_lines(synthetic)[0].endswith("synthetic images")
    assert len(summary_lines(synthetic)) == 2
    rows = document(summary, records(2.0, 1.0), [found])
    assert rows["summary"]["kind"] == "measured"
    assert [row["loss"] for row in rows["steps"]] == [2.0, 1.0]
