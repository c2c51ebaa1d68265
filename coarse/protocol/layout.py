"""Layout of many tensors in one flat padded buffer, and the fusion of small ones into buckets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coarse.protocol.units import MIB


@dataclass(frozen=True)
class TensorSlot:
    """Place of one tensor in a flat buffer."""

    name: str
    offset_elements: int
    num_elements: int


@dataclass(frozen=True)
class FlatLayout:
    """Tensors in order, none overlapping; `num_elements` counts the padding too."""

    slots: tuple[TensorSlot, ...]
    num_elements: int


def flat_layout(entries: Sequence[tuple[str, int]], *, align_elements: int) -> FlatLayout:
    """Return the layout of (name, num_elements) entries in order, each at a multiple of the alignment.

    The whole is padded to a multiple as well, so that it divides evenly.
    """
    _check(entries, "align_elements", align_elements)
    slots = []
    offset_elements = 0
    for name, num_elements in entries:
        slots.append(TensorSlot(name, offset_elements, num_elements))
        offset_elements += -(-num_elements // align_elements) * align_elements
    return FlatLayout(tuple(slots), offset_elements)


def fuse(entries: Sequence[tuple[str, int]], *, bucket_bytes: int) -> tuple[tuple[str, ...], ...]:
    """Return the names of (name, nbytes) entries in order, neighbours fused up to `bucket_bytes`.

    A tensor larger than a bucket stands alone.
    """
    _check(entries, "bucket_bytes", bucket_bytes)
    buckets: list[list[str]] = []
    filled_bytes = bucket_bytes + 1
    for name, nbytes in entries:
        if filled_bytes + nbytes > bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(name)
        filled_bytes += nbytes
    return tuple(tuple(bucket) for bucket in buckets)


def bucket_limit_bytes(total_bytes: int, bucket_bytes: int) -> int:
    """Return the largest bucket that leaves a model eight of them, within limits.

    Eight buckets let the first start early and keep the last small. The limits are at most `bucket_bytes`, and at least
    4 MiB, below which fusing saves more than overlap does.
    """
    return min(bucket_bytes, max(4 * MIB, total_bytes // 8))


def _check(entries: Iterable[tuple[str, int]], limit_name: str, limit: int) -> None:
    if limit < 1:
        raise ValueError(f"{limit_name} must be at least 1, got {limit}")
    seen = set()
    for name, count in entries:
        if name in seen:
            raise ValueError(f"names must differ, got {name!r} twice")
        if count < 0:
            raise ValueError(f"{name!r} must not be smaller than 0, got {count}")
        seen.add(name)
