"""Copies between a worker's arrays and its regions, where either is on a GPU; callers wait for them only if they must.

[Note: departures] A push says that bytes lie in a region, so its records leave once the event of the copy is done. A
thread waits for these events, in order, and sends the records then; whoever pushed goes on, and backward computes.

[Note: the user's stream] A copy begins once what the user's stream had under way is done. A result is in a GPU's array
for whatever the user's stream is given after `wait`, and on the host when `wait` returns.
"""

import contextlib
import ctypes
import mmap
import queue
import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from coarse.client.link import DeviceLink
from coarse.client.protocol import ClientKey, ToDevice
from coarse.client.regions import KeyRegions
from coarse.errors import CapacityError, CoarseError, GpuError
from coarse.gpu.available import gpus
from coarse.gpu.interface import AnyArray, Event, GpuArray, Stream, address_of, is_on_gpu
from coarse.protocol.plan import runs_of
from coarse.protocol.units import MIB

_Departure = tuple[Event, Callable[[], None]]
_PIECE_BYTES = 16 * MIB
"""A large contribution is announced in pieces of this size; each costs a call, an event and a record."""


class GpuCopies:
    """One worker's copies to and from GPUs; `push`, `announce` and `pull` are called with the link's lock held."""

    def __init__(self, link: DeviceLink, regions: KeyRegions) -> None:
        self._link = link
        self._regions = regions
        self._streams: dict[tuple[str, int], Stream] = {}
        """(Way, GPU) -> the stream of the copies to regions, or from them."""
        self.pulled: dict[int, Event] = {}
        """Key -> the point at which its result has been copied."""
        self._departures: queue.SimpleQueue[_Departure | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pins = PinnedRanges(mmap.PAGESIZE)
        self._pinned: list[tuple[np.ndarray, np.ndarray]] = []
        """(Pages, the region that keeps them mapped) of all that is pinned."""
        self._may_pin = True
        self._failed: CoarseError | None = None
        self.gpu: int | None = None
        """Number of the GPU of the last array that was pushed from one; None if none was."""

    def push(self, state: ClientKey, array: AnyArray, *, is_lasting: bool) -> None:
        """Start to copy a contribution to its region, piece by piece; devices are told of each once it is there.

        `is_lasting`: its caller leaves `array` alone until the result is there. Else the user's stream waits for the
        copy before it does anything more.
        """
        self.require_working()
        region, flat = self._regions.view(state), _flat(array)
        if not is_on_gpu(region):
            self._pin(region)
        stream, users = self._stream("to", flat, region), self._users_stream(flat)
        if users is not None:
            self.gpu = users.gpu
            stream.wait_for(users.record())
        if state.key in self.pulled:
            stream.wait_for(self.pulled.pop(state.key))
        num_shards = state.plan.num_shards
        stride = max(1, _PIECE_BYTES * num_shards // max(1, state.nbytes))
        for first in range(0, num_shards, stride):
            last = min(first + stride, num_shards)
            begin, end = state.plan.bounds(first, last)
            self._copy(stream, region[begin:end], flat[begin:end])
            self._regions.count("to", state, (end - begin) * region.itemsize)
            records = self._link.protocol.announce(state.key, first, last, present=True)
            self._depart(stream.record(), records, flat)
        if users is not None and not is_lasting:
            users.wait_for(stream.record())

    def announce(self, state: ClientKey, *, present: bool) -> None:
        """Announce a contribution that is whole in its region: on a GPU, once the stream that writes it is through."""
        records = self._link.protocol.announce(state.key, 0, state.plan.num_shards, present=present)
        region: AnyArray | None = self._regions.view(state) if present else None
        if region is None or isinstance(region, np.ndarray):
            self._link.send(records)
            return
        self.require_working()
        self._depart(gpus().current_stream(gpus().gpu_of(region)).record(), records, region)

    def pull(self, state: ClientKey, out: AnyArray, shards: int) -> int:
        """Start to copy shards of a result that have come; see `land`. Those that were begun.

        An array on the host that is not contiguous gets all of them at once, when all have come.
        """
        region = self._regions.view(state)
        if isinstance(out, np.ndarray) and not out.flags.c_contiguous:
            if state.awaited:
                return 0
            found = np.empty(out.shape, out.dtype)
            self.now(found.reshape(-1), region)
            np.copyto(out, found)
            self._regions.count("from", state, out.nbytes)
            return shards
        flat = _flat(out)
        stream, users = self._stream("from", flat, region), self._users_stream(flat)
        if users is not None:
            stream.wait_for(users.record())  # it may still read what the result is written over
        for first, last in runs_of(shards):
            begin, end = state.plan.bounds(first, last)
            self._copy(stream, flat[begin:end], region[begin:end])
            self._regions.count("from", state, (end - begin) * region.itemsize)
        self.pulled[state.key] = stream.record()
        return shards

    def land(self, key: int, target: AnyArray) -> None:
        """Let the caller that waited for a result use it, where it was copied to: see [Note: the user's stream]."""
        event = self.pulled[key]
        users = self._users_stream(target)
        if users is not None:
            users.wait_for(event)
        else:
            event.wait()

    def now(self, target: AnyArray, source: AnyArray) -> None:
        """Copy, and return when that is done."""
        stream = self._stream("to", source, target)
        self._copy(stream, target, source)
        stream.record().wait()

    def pin(self, region: np.ndarray) -> None:
        """Pin device memory that lies on the host; any thread may call it."""
        with self._link.lock:
            self._pin(region)

    def fetch(self, target: GpuArray, source: np.ndarray, is_free: Event) -> Event:
        """Start to copy device memory on the host, which is pinned first, to a GPU's array, after an event.

        Any thread may call it.
        """
        with self._link.lock:
            self._pin(source)
            stream = self._stream("from", target, target)
            stream.wait_for(is_free)
            self._copy(stream, target, source)
            return stream.record()

    def store(self, target: np.ndarray, source: GpuArray) -> Event:
        """Start to copy a GPU's array to device memory on the host, which is pinned first.

        The copy begins after what the user's stream has under way; any thread may call it.
        """
        with self._link.lock:
            self._pin(target)
            stream = self._stream("to", source, source)
            stream.wait_for(gpus().current_stream(gpus().gpu_of(source)).record())
            self._copy(stream, target, source)
            return stream.record()

    def settle(self, key: int) -> None:
        """Return once nothing reads a key's region, or writes its result, any more."""
        event = self.pulled.pop(key, None)
        if event is not None:
            event.wait()

    def on_host(self, array: AnyArray) -> np.ndarray:
        """Return the values of an array, on the host."""
        if isinstance(array, np.ndarray):
            return array
        found = np.empty(array.shape, array.dtype)
        stream = gpus().current_stream(gpus().gpu_of(array))
        stream.arrays.copy(found, array)
        stream.record().wait()
        return found

    def require_working(self) -> None:
        """Raise GpuError if the thread that sends has ended for one: nothing would leave any more."""
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Return once all that was pushed has left and all copies have ended, and unpin what was pinned."""
        if self._thread is not None:
            self._departures.put(None)
            self._thread.join()
            self._thread = None
        with contextlib.suppress(GpuError):
            for stream in self._streams.values():
                stream.record().wait()
        self.pulled.clear()
        with contextlib.suppress(GpuError):  # CUDA may have ended before this process has
            for pages, _ in self._pinned:
                gpus().unpin(pages)
        self._pinned.clear()

    # --- within

    def _depart(self, event: Event, records: list[ToDevice], kept: AnyArray) -> None:
        """Send records once an event is done, as of now; `kept` is read until then. See [Note: departures]."""
        moment_s = self._link.moment_s()

        def leave() -> None:
            assert kept is not None
            with self._link.lock:
                self._link.send_as_of(moment_s, records)
                self._link.ring_bells()

        if self._thread is None:
            self._thread = threading.Thread(target=self._see_off, name="coarse-departures", daemon=True)
            self._thread.start()
        self._departures.put((event, leave))

    def _see_off(self) -> None:
        while (departure := self._departures.get()) is not None:
            event, leave = departure
            try:
                event.wait()
                if self._failed is None:
                    leave()
            except CoarseError as error:
                with self._link.lock:
                    self._failed = self._failed or error
                    self._link.tell_waiting()

    def _stream(self, way: str, users: AnyArray, region: AnyArray) -> Stream:
        """Return the stream of copies of one way, on the GPU of the user's array, else of the region."""
        of = users if is_on_gpu(users) else region
        assert is_on_gpu(of)
        gpu = gpus().gpu_of(of)
        found = self._streams.get((way, gpu))
        if found is None:
            found = self._streams[way, gpu] = gpus().stream(gpu)
        return found

    def _users_stream(self, array: AnyArray) -> Stream | None:
        """Return the stream in which the user works with an array; None for one on the host."""
        return gpus().current_stream(gpus().gpu_of(array)) if is_on_gpu(array) else None

    def _copy(self, stream: Stream, target: AnyArray, source: AnyArray) -> None:
        """Copy between flat arrays, by as many calls as there are pinned ranges."""
        host = next((array for array in (target, source) if isinstance(array, np.ndarray)), None)
        if host is None or not host.nbytes:
            stream.arrays.copy(target, source)
            return
        first, itemsize = address_of(host), host.itemsize
        for begin, end in self._pins.pieces(first, first + host.nbytes):
            part = slice((begin - first) // itemsize, (end - first) // itemsize)
            stream.arrays.copy(target[part], source[part])

    def _pin(self, region: np.ndarray) -> None:
        """Pin a region of the host's memory, so that copies between it and a GPU block no thread."""
        if not self._may_pin or not region.nbytes:
            return
        first = address_of(region)
        for begin, end in self._pins.lacking(first, first + region.nbytes):
            pages = _pages_at(begin, end)
            try:
                gpus().pin(pages)
            except (CapacityError, GpuError) as refused:
                self._may_pin = False
                warnings.warn(
                    f"rank {self._link.protocol.client}: {refused}; copies between GPUs and device memory that is not "
                    "pinned hold up backward",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return
            self._pins.add(begin, end)
            self._pinned.append((pages, region))


def _pages_at(begin: int, end: int) -> np.ndarray:
    """Return (end - begin,) uint8, the memory at an address of this process; the caller knows that it is mapped."""
    pages: np.ndarray = np.ctypeslib.as_array((ctypes.c_uint8 * (end - begin)).from_address(begin))
    return pages


def _flat(array: AnyArray) -> AnyArray:
    """Return an array's elements one after the other; a copy if it is on the host and not contiguous."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).reshape(-1)
    return array.reshape(-1)


class PinnedRanges:
    """Ranges that have been pinned, in order of their addresses; no two have a page in common."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._begins: list[int] = []
        self._ends: list[int] = []

    def lacking(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges, whole pages, that are still to be pinned for all of [begin, end) to be so."""
        page = self._page_bytes
        at, last = begin // page * page, -(-end // page) * page
        lacking = []
        for known_begin, known_end in self._within(at, last):
            if at < known_begin:
                lacking.append((at, known_begin))
            at = max(at, known_end)
        return [*lacking, (at, last)] if at < last else lacking

    def add(self, begin: int, end: int) -> None:
        """Note that a range of `lacking` has been pinned."""
        index = bisect_right(self._begins, begin)
        self._begins.insert(index, begin)
        self._ends.insert(index, end)

    def pieces(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return [begin, end) in pieces of which none reaches from one pinned range into another, or out of one."""
        edges = {edge for known in self._within(begin, end) for edge in known if begin < edge < end}
        bounds = [begin, *sorted(edges), end]
        return list(pairwise(bounds))

    def _within(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges that have a byte of [begin, end), in order."""
        first = max(0, bisect_right(self._begins, begin) - 1)
        found = zip(self._begins[first:], self._ends[first:], strict=True)
        return [known for known in found if known[0] < end and begin < known[1]]
