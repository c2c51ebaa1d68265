"""What a training on the digits says: a line per epoch, the test's result, and a document for later reading."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import coarse
from coarse.session import current
from experiments.agreement import Pushed, check_alike, check_finite, check_pushed, digest, gradient_bytes, place, pushed
from experiments.gpt.rows import provenance, run_path, write_json
from experiments.keras_digits.data import NUM_TEST
from experiments.keras_digits.model import Trained
from experiments.keras_digits.settings import DigitsTraining, check_batch

VERSIONS = {"tensorflow": tf.__version__, "keras": keras.__version__}


class EpochLines(keras.callbacks.Callback):
    """Checks the batch once the number of workers is known, and has rank 0 print a line per epoch."""

    def __init__(self, settings: DigitsTraining, num_images: int) -> None:
        super().__init__()
        self._settings = settings
        self._num_images = num_images

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        check_batch(self._settings.batch, self._num_images, *place())

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        rank, _ = place()
        if rank == 0 and logs is not None:
            print(
                f"epoch {epoch + 1}/{self._settings.epochs}  loss {logs['loss']:.6f}  accuracy {logs['accuracy']:.2%}",
                flush=True,
            )


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The run in words."""
    num_workers = summary["workers"]
    way = summary["strategy"] if summary["mode"] is None else f"{summary['strategy']}, mode {summary['mode']}"
    lines = [
        f"SHA-256 of the weights {summary['weights_sha256']}",
        f"{way}, workers: {num_workers}; {summary['steps']} steps",
        f"test accuracy {summary['test_accuracy']:.2%} on {summary['test_images']} digits ({summary['kind']})",
    ]
    if num_workers > 1:
        lines.append("test accuracy, loss and weights are equal on all workers")
    if summary["pushes"]:
        lines.append(f"{summary['pushes']:,} pushes by each worker, {summary['pushed_bytes']:,} bytes (counted)")
    return lines


def _sha256(weights: list[np.ndarray]) -> str:
    found = hashlib.sha256()
    for weight in weights:
        found.update(np.ascontiguousarray(weight).tobytes())
    return found.hexdigest()


def finish(settings: DigitsTraining, trained: Trained, out: Path) -> None:
    """Compare all workers, count what was pushed, print the result on rank 0, and write this worker's document."""
    rank, num_workers = place()
    check_finite(trained.history["loss"], rank)
    found = pushed() if coarse.is_initialized() else Pushed(0, 0)
    num_steps = int(trained.model.optimizer.iterations.numpy())
    if num_workers > 1 and os.environ.get("COARSE_RESTARTS", "0") == "0":  # else an earlier start has pushed, too
        check_pushed(found, num_steps, gradient_bytes(trained.model.trainable_variables), rank)
    weights = digest(trained.model.get_weights())
    ends = {"test accuracy": trained.test_accuracy, "loss": trained.history["loss"][-1], "weights": weights}
    check_alike(ends, "only some workers did")
    summary = {
        "kind": "measured",
        "strategy": settings.strategy,
        "mode": current().config.mode if coarse.is_initialized() else None,
        "workers": num_workers,
        "test_accuracy": trained.test_accuracy,
        "test_images": NUM_TEST,
        "steps": num_steps,
        "pushes": found.pushes,
        "pushed_bytes": found.nbytes,
        "weights_crc32": int(weights),
        "weights_sha256": _sha256(trained.model.get_weights()),
    }
    if rank == 0:
        print(*summary_lines(summary), sep="\n", flush=True)
    rows = {"settings": asdict(settings), "summary": summary, "history": trained.history}
    provided = provenance()
    versions = {**provided["versions"], **VERSIONS}
    write_json(run_path(out, settings.strategy, rank), {**provided, "versions": versions, **rows})
    if coarse.is_initialized():
        coarse.shutdown()
