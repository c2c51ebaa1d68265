"""scikit-learn's handwritten digits, which come with that package: 1,797 images of 8 x 8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_CLASSES = 10
NUM_TEST = 360
BRIGHTEST = 16.0


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images and what they show."""

    pixels: NDArray[np.float32]
    """(n, 8, 8, 1), from 0 to 1."""
    labels: NDArray[np.int64]
    """(n,), from 0 to 9."""


@dataclass(frozen=True, kw_only=True)
class Digits:
    """The digits, divided once and for all runs of one seed."""

    train: Images
    test: Images


def load_digits(seed: int) -> Digits:
    """The digits in an order that the seed decides, the last NUM_TEST for the test."""
    from sklearn import datasets  # here, so that the checks of arguments come before a second of importing

    found = datasets.load_digits()
    order = np.random.default_rng(seed).permutation(len(found.target))
    pixels = (found.images[order, :, :, None] / BRIGHTEST).astype(np.float32)
    labels = found.target[order].astype(np.int64)
    return Digits(
        train=Images(pixels=pixels[:-NUM_TEST], labels=labels[:-NUM_TEST]),
        test=Images(pixels=pixels[-NUM_TEST:], labels=labels[-NUM_TEST:]),
    )
