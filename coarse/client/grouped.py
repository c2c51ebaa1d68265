"""Several small arrays that travel as one: one push, one sum and one result for all of a type.

A push costs the same for 4 KiB as for 4 bytes: records, two dispatches, a wake-up. A group is one tensor to devices,
and costs as much as one.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from coarse.client.client import Client
from coarse.client.handle import Handle
from coarse.errors import StallError
from coarse.gpu.available import empty_like, gpus
from coarse.gpu.interface import AnyArray, is_on_gpu
from coarse.protocol.dtypes import DType, Op
from coarse.protocol.records import Descriptor


class Pack(NamedTuple):
    """The arrays of one type, end to end."""

    descriptor: Descriptor
    places: tuple[int, ...]
    """Numbers of its arrays in the group."""
    bounds: tuple[int, ...]
    """Offset of each array, in elements, and the end of the last."""


@lru_cache(maxsize=256)
def packs_of(name: str, kinds: tuple[tuple[DType, tuple[int, ...]], ...], op: Op, priority: int) -> tuple[Pack, ...]:
    """Return the packs of a group of arrays of these types and shapes: one for each type, in order of their first.

    Every pack says what all arrays are, so that ranks whose groups differ anywhere are told so.
    """
    listed = ";".join(f"{dtype.label}{list(shape)}" for dtype, shape in kinds)
    parts = f"{len(kinds)} arrays #{hashlib.blake2b(listed.encode(), digest_size=4).hexdigest()}"
    packs = []
    for number, wanted in enumerate(dict.fromkeys(dtype for dtype, _ in kinds)):
        places = tuple(place for place, (dtype, _) in enumerate(kinds) if dtype is wanted)
        bounds = [0]
        for place in places:
            bounds.append(bounds[-1] + int(np.prod(kinds[place][1], dtype=np.int64)))
        descriptor = Descriptor(f"{name}/group {number}", int(wanted), int(op), (bounds[-1],), priority, parts)
        packs.append(Pack(descriptor, places, tuple(bounds)))
    return tuple(packs)


class GroupHandle:
    """A group under way; `wait` gives its results, views of one new buffer for each type."""

    def __init__(
        self, client: Client, arrays: Sequence[np.ndarray], packs: Sequence[Pack], *, is_waited: bool = False
    ) -> None:
        """Push arrays, each of its pack's storage type. `is_waited`: the caller waits at once, and may call again."""
        self._client = client
        self._shapes = [array.shape for array in arrays]
        self._packs = packs
        self._pushed: list[Handle] = []
        flats = [_end_to_end(pack, arrays, client) for pack in packs]
        self._gpus = [gpus().gpu_of(array) if is_on_gpu(array) else None for array in arrays]
        if is_waited:  # all of them, or none
            client.require_resumable((pack.descriptor, flat) for pack, flat in zip(packs, flats, strict=True))
        for pack, flat in zip(packs, flats, strict=True):
            if is_waited:
                self._pushed.append(client.push_pull_again(pack.descriptor, flat, empty_like(flat)))
            else:
                self._pushed.append(client.push_pull(pack.descriptor, flat, flat))

    def done(self) -> bool:
        """Return whether `wait` would return at once."""
        return all(handle.done() for handle in self._pushed)

    def wait(self, timeout: float | None = None) -> list[np.ndarray]:
        """Return the results, in the arrays' order; after `timeout` seconds (default: stall_timeout_s) StallError."""
        try:
            self._client.await_all([handle.key for handle in self._pushed], timeout)
        except StallError:
            for handle in self._pushed:
                handle.stall()
            raise
        results: dict[int, np.ndarray] = {}
        for pack, handle in zip(self._packs, self._pushed, strict=True):
            flat = handle.wait(0.0)
            for place, (begin, end) in zip(pack.places, pairwise(pack.bounds), strict=True):
                results[place] = _beside(flat[begin:end], self._gpus[place]).reshape(self._shapes[place])
        return [results[place] for place in range(len(self._shapes))]


def _end_to_end(pack: Pack, arrays: Sequence[np.ndarray], client: Client) -> np.ndarray:
    """Return a new buffer with a pack's arrays: on their GPU if they are all on one, else on the host."""
    own = [arrays[place] for place in pack.places]
    bounds = list(pairwise(pack.bounds))
    places = {gpus().gpu_of(array) if is_on_gpu(array) else None for array in own}
    gpu = places.pop() if len(places) == 1 else None
    if gpu is not None:
        buffer = gpus().empty(gpu, (pack.bounds[-1],), own[0].dtype)
        stream = gpus().current_stream(gpu)
        for array, (begin, end) in zip(own, bounds, strict=True):
            stream.arrays.copy(buffer[begin:end], array.reshape(-1))
        return cast(np.ndarray, buffer)
    flat = np.empty(pack.bounds[-1], own[0].dtype)
    for array, (begin, end) in zip(own, bounds, strict=True):
        flat[begin:end].reshape(array.shape)[...] = client.copies.on_host(array) if is_on_gpu(array) else array
    return flat


def _beside(part: AnyArray, gpu: int | None) -> np.ndarray:
    """Return a part of a result, on a GPU if its array was there."""
    if gpu is None or is_on_gpu(part):
        return cast(np.ndarray, part)
    found = gpus().empty(gpu, part.shape, part.dtype)
    gpus().current_stream(gpu).arrays.copy(found, part)
    return cast(np.ndarray, found)
