"""Train keras.applications.ResNet50 on a folder of images, on several workers with memory devices or in one process.

python experiments/train_resnet50_keras.py --digits --mode single                                one process
coarse run --workers 2 --devices 2 experiments/train_resnet50_keras.py --digits                  memory devices add
coarse run --workers 2 --devices 2 experiments/train_resnet50_keras.py --data /data/imagenet     ImageNet's layout
coarse run --workers 2 --devices 2 experiments/train_resnet50_keras.py --synthetic --steps 20    how fast it is

The folder has train/<class>/ and val/<class>/ with .jpg, .jpeg or .png images. Weights begin at random.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from coarse.errors import CoarseError
from coarse.protocol.clock import WallClock
from experiments.gpt.rows import provenance, run_path, write_json
from experiments.keras_images.folder import ImageFolder, read_folder
from experiments.keras_images.rates import SCHEDULES
from experiments.keras_images.report import document, summary_lines
from experiments.keras_images.settings import MODES, PRECISIONS, Augmentation, ImageTraining

if TYPE_CHECKING:
    from experiments.keras_images.training import Run

DIGITS = Augmentation(least_area=0.8, flip=False)
"""Of the digits: a mirrored 2 is none."""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; defaults are those of ImageTraining and Augmentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    images = parser.add_mutually_exclusive_group(required=True)
    images.add_argument("--data", type=Path, metavar="FOLDER", help="images in ImageNet's layout")
    images.add_argument("--digits", action="store_true", help="scikit-learn's digits, written as such a folder")
    images.add_argument("--synthetic", action="store_true", help="noise, which costs nothing to load")
    parser.add_argument("--mode", choices=MODES, default=os.environ.get("COARSE_MODE", "coarse"))
    parser.add_argument("--epochs", type=int, default=ImageTraining.epochs)
    parser.add_argument("--steps", type=int, help="steps in all, in place of epochs")
    parser.add_argument("--batch", type=int, default=ImageTraining.batch, help="images of the global batch")
    parser.add_argument("--image-size", type=int, default=ImageTraining.image_size, help="pixels of a side")
    parser.add_argument(
        "--learning-rate", type=float, default=ImageTraining.learning_rate,
        help="the highest, for a batch of 256 images; others in proportion",
    )  # fmt: skip
    parser.add_argument("--schedule", choices=SCHEDULES, default=ImageTraining.schedule)
    parser.add_argument("--warmup", type=float, default=ImageTraining.warmup, help="part of all steps, from 0 to 1")
    parser.add_argument("--precision", choices=PRECISIONS, default=ImageTraining.precision, help="of the layers")
    parser.add_argument("--least-area", type=float, help="smallest part that a random crop keeps")
    parser.add_argument("--flip", action=argparse.BooleanOptionalAction, help="mirror half of the images")
    parser.add_argument("--seed", type=int, default=ImageTraining.seed)
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="for the weights after each epoch")
    parser.add_argument("--out", type=Path, default=Path("results/train_resnet50_keras"), help="folder for the rows")
    given = parser.parse_args(arguments)
    if given.mode != "single" and given.mode != os.environ.get("COARSE_MODE", given.mode):
        parser.error(f"--mode is {given.mode} but COARSE_MODE={os.environ['COARSE_MODE']}; leave one of them out")
    if given.synthetic and given.steps is None:
        parser.error("--synthetic images have no epochs; say how many --steps")
    if given.synthetic and (given.least_area is not None or given.flip is not None):
        parser.error("--least-area and --flip are for images from files, not for --synthetic; leave them out")
    return given


def settings_from(options: argparse.Namespace) -> ImageTraining:
    """The options as a checked configuration."""
    usual = DIGITS if options.digits else Augmentation()
    augmentation = Augmentation(
        least_area=usual.least_area if options.least_area is None else options.least_area,
        flip=usual.flip if options.flip is None else options.flip,
    )
    names = {field.name for field in fields(ImageTraining)} & vars(options).keys()
    return ImageTraining(augmentation=augmentation, **{name: getattr(options, name) for name in names})


def images_from(options: argparse.Namespace, rank: int, opened: ExitStack) -> ImageFolder | None:
    """The images that the options name; None for synthetic ones. The digits' folder lasts as long as `opened`."""
    if options.synthetic:
        return None
    if options.data:
        return read_folder(options.data, rank)
    from experiments.keras_images.digits_folder import write_digits

    folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="digits-")))
    write_digits(folder, options.seed)
    return read_folder(folder, rank)


def main(arguments: list[str] | None = None) -> Run:
    """Train, validate, check that all workers agree, and leave one document per worker in the folder of --out."""
    options = parse_arguments(arguments)
    with ExitStack() as opened:
        try:
            settings = settings_from(options)
            images = images_from(options, int(os.environ.get("PMIX_RANK", "0")), opened)
        except (CoarseError, OSError) as error:  # before any rank waits for another
            raise SystemExit(f"train_resnet50_keras.py: {error}") from None
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        from experiments.keras_images.training import Run  # only now: importing TensorFlow takes seconds

        run = Run(settings, images, options.checkpoints, WallClock().now_s)
        run.train()
    summary = run.summary()
    if run.rank == 0:
        print(*summary_lines(summary), sep="\n", flush=True)
    rows = {**provenance(), "settings": asdict(settings), **document(summary, run.watch.records, run.watch.validations)}
    write_json(run_path(options.out, settings.mode, run.rank), rows)
    return run


if __name__ == "__main__":
    main()
