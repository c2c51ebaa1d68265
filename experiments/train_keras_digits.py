"""Train a small Keras model on scikit-learn's digits, on several workers with memory devices or in one process.

coarse run --workers 2 --devices 2 experiments/train_keras_digits.py      memory devices add the gradients
python experiments/train_keras_digits.py                                  one worker with a memory device inside
python experiments/train_keras_digits.py --strategy mirrored              tf.distribute.MirroredStrategy
python experiments/train_keras_digits.py --strategy none                  plain Keras

The three trainings (experiments/keras_digits/none.py, mirrored.py, coarse.py) differ in how they make the strategy.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from coarse.errors import ConfigError
from experiments.keras_digits.settings import STRATEGIES, DigitsTraining


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; defaults are those of DigitsTraining."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=STRATEGIES, default=DigitsTraining.strategy)
    parser.add_argument("--epochs", type=int, default=DigitsTraining.epochs)
    parser.add_argument("--batch", type=int, default=DigitsTraining.batch, help="images of the global batch")
    parser.add_argument("--learning-rate", type=float, default=DigitsTraining.learning_rate)
    parser.add_argument("--seed", type=int, default=DigitsTraining.seed, help="of weights, order and test set")
    parser.add_argument("--out", type=Path, default=Path("results/keras_digits"), help="folder for the rows")
    return parser.parse_args(arguments)


def settings_from(options: argparse.Namespace) -> DigitsTraining:
    """The options as a checked configuration."""
    chosen = {name: value for name, value in vars(options).items() if name != "out"}
    return DigitsTraining(**chosen)


def main(arguments: list[str] | None = None) -> None:
    """Train, test, check that all workers agree, and leave one document per worker in the folder of --out."""
    options = parse_arguments(arguments)
    try:
        settings = settings_from(options)
    except ConfigError as error:  # alike on every rank, before any waits for another
        raise SystemExit(f"train_keras_digits.py: {error}") from None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # kernels that add in one order, and a line of log less
    import keras  # only now: importing TensorFlow takes seconds
    import tensorflow as tf

    from experiments.keras_digits.data import load_digits
    from experiments.keras_digits.report import EpochLines, finish

    tf.config.threading.set_intra_op_parallelism_threads(1)  # several workers share the machine's cores
    keras.utils.set_random_seed(settings.seed)
    digits = load_digits(settings.seed)
    train = import_module(f"experiments.keras_digits.{settings.strategy}").train
    callbacks: list[keras.callbacks.Callback] = [EpochLines(settings, len(digits.train.labels))]
    if "COARSE_RESTARTS" in os.environ:  # coarse run keeps what is committed
        from tf_strategy import Resumable

        callbacks.append(Resumable())
    finish(settings, train(settings, digits, callbacks), options.out)


if __name__ == "__main__":
    main()
