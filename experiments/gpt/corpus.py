"""Real text that every Python has: the sources of its standard library, as bytes."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
"""Folders that are not part of the library, or hold many near-copies of one text."""

VALIDATION_EVERY = 20
"""One file in so many is kept for validation, whole, so that no training text leaks into it."""


@dataclass(frozen=True)
class Batch:
    """Inputs and, one byte later, what they should predict."""

    tokens: np.ndarray  # (rows, context) int64
    targets: np.ndarray  # (rows, context) int64


@dataclass(frozen=True)
class Corpus:
    """Bytes for training and for validation; `digest` names exactly these bytes."""

    train: np.ndarray  # (n,) uint8
    validation: np.ndarray  # (m,) uint8
    digest: str

    def batch(
        self, step: int, *, seed: int, global_rows: int, context: int, worker: int = 0, workers: int = 1
    ) -> Batch:
        """A worker's cut of the global batch of `step`; all cuts, end to end, are the batch of one worker."""
        rows = rows_of(worker, workers, global_rows)
        starts = _starts(np.random.default_rng([seed, step]), self.train, global_rows, context)
        return _read(self.train, starts[rows.start : rows.stop], context)

    def validation_batch(self, *, rows: int, context: int) -> Batch:
        """The same validation rows at every call."""
        return _read(self.validation, _starts(np.random.default_rng(0), self.validation, rows, context), context)


def rows_of(worker: int, workers: int, global_rows: int) -> range:
    """The rows of the global batch that a worker takes; equal cuts, so that a mean of means is the mean."""
    if global_rows % workers:
        raise ValueError(
            f"a global batch of {global_rows} rows can't be cut into equal parts for {workers} workers; "
            f"choose a multiple of {workers} for --batch"
        )
    rows = global_rows // workers
    return range(worker * rows, (worker + 1) * rows)


def load_corpus(folder: Path | None = None) -> Corpus:
    """All `.py` files below `folder` (default: this Python's standard library) in the order of their paths."""
    folder = folder or Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(
        (path for path in folder.rglob("*.py") if not LEFT_OUT & set(path.relative_to(folder).parts)),
        key=lambda path: path.relative_to(folder).as_posix(),
    )
    if len(paths) < VALIDATION_EVERY:
        raise ValueError(
            f"wanted at least {VALIDATION_EVERY} Python sources below {folder}, found {len(paths)}; "
            "use a Python whose standard library is installed as files"
        )
    texts = [path.read_bytes() for path in paths]
    validation = texts[VALIDATION_EVERY - 1 :: VALIDATION_EVERY]
    train = [text for index, text in enumerate(texts) if index % VALIDATION_EVERY != VALIDATION_EVERY - 1]
    return Corpus(
        train=np.frombuffer(b"".join(train), dtype=np.uint8),
        validation=np.frombuffer(b"".join(validation), dtype=np.uint8),
        digest=hashlib.sha256(b"".join(texts)).hexdigest(),
    )


def _starts(random: np.random.Generator, text: np.ndarray, rows: int, context: int) -> np.ndarray:
    """(rows,) int64: where each row begins, so that its last target still lies in the text."""
    if len(text) <= context:
        raise ValueError(f"a context of {context} bytes needs more text than the {len(text)} bytes there are")
    return random.integers(0, len(text) - context, size=rows)


def _read(text: np.ndarray, starts: np.ndarray, context: int) -> Batch:
    """The rows of `context` bytes that begin at `starts`."""
    places = starts[:, None] + np.arange(context + 1)
    rows = text[places].astype(np.int64)
    return Batch(tokens=rows[:, :-1], targets=rows[:, 1:])
