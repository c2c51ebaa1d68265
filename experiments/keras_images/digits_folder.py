"""scikit-learn's digits as a folder of PNGs in ImageNet's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from experiments.keras_digits.data import Images, load_digits

SIDE = 32
"""Pixels of an image's side, four for each of the original's."""


def write_digits(folder: Path, seed: int) -> None:
    """Write folder/train/<digit>/<number>.png and folder/val/<digit>/<number>.png, 32 x 32 pixels in colour."""
    digits = load_digits(seed)
    for part, images in (("train", digits.train), ("val", digits.test)):
        for digit in sorted(set(images.labels.tolist())):
            (folder / part / str(digit)).mkdir(parents=True)
        _write(folder / part, images)


def _write(folder: Path, images: Images) -> None:
    pixels = np.round(images.pixels[:, :, :, 0] * 255).astype(np.uint8)
    for number, (small, label) in enumerate(zip(pixels, images.labels.tolist(), strict=True)):
        large = Image.fromarray(small).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        large.save(folder / str(label) / f"{number:04}.png")
