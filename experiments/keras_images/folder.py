"""A folder of images in ImageNet's layout: folder/train/<class>/<image> and folder/val/<class>/<image>."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from coarse.errors import CoarseError

ENDINGS = (".jpg", ".jpeg", ".png")


class ImageFolderError(CoarseError, ValueError):
    """A folder that is not of ImageNet's layout, or an image that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The images to train on, or those to validate with."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]
    """The number of each image's class in `ImageFolder.classes`."""


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """What a folder holds, in an order that is the same on every machine."""

    classes: tuple[str, ...]
    train: Part
    val: Part

    def digest(self) -> float:
        """A number that tells folders apart by the names within, wherever they lie; exact as a float64."""
        checksum = 0
        for part in (self.train, self.val):
            for path in part.paths:
                checksum = zlib.crc32("/".join(Path(path).parts[-3:]).encode(), checksum)
        return float(checksum)


def read_folder(folder: Path, rank: int) -> ImageFolder:
    """List a folder's images; ImageFolderError, with this rank, where its layout is another."""
    try:
        train, val = (_classes(folder / part) for part in ("train", "val"))
        if set(train) != set(val):
            raise _different(folder, set(train), set(val))
        return ImageFolder(classes=tuple(train), train=_part(train), val=_part(val))
    except ImageFolderError as error:
        raise ImageFolderError(f"rank {rank}: {error}") from None


def _classes(folder: Path) -> dict[str, list[str]]:
    """By class the paths of its images, both sorted by name."""
    if not folder.is_dir():
        raise ImageFolderError(
            f"there is no folder {folder}; images are looked for in {folder}/<class>/, named .jpg, .jpeg or .png"
        )
    found = {path.name: _images(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    empty = [name for name, images in found.items() if not images]
    if not found or empty:
        where = folder / empty[0] if empty else folder / "<class>"
        raise ImageFolderError(f"there is no .jpg, .jpeg or .png in {where}; put some there, or remove the folder")
    return found


def _images(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.iterdir() if path.suffix.lower() in ENDINGS)


def _different(folder: Path, train: set[str], val: set[str]) -> ImageFolderError:
    """What to say where the two parts have other classes."""
    name = min(train ^ val)
    has, lacks = ("train", "val") if name in train else ("val", "train")
    return ImageFolderError(
        f"class {name!r} has a folder in {folder / has} but none in {folder / lacks}; both want one for each class, "
        f"and {len(train ^ val)} stand in one alone"
    )


def _part(classes: dict[str, list[str]]) -> Part:
    pairs = [(path, label) for label, images in enumerate(classes.values()) for path in images]
    return Part(paths=tuple(path for path, _ in pairs), labels=tuple(label for _, label in pairs))
