"""The client's live driver: copies into device memory, writes records, waits on the doorbell."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

import numpy as np

from coarse.client.arenas import Arenas
from coarse.client.gpu_copies import GpuCopies
from coarse.client.handle import Handle
from coarse.client.lending import Lending
from coarse.client.link import DeviceLink
from coarse.client.protocol import ClientKey, KeyPhase, ToDevice
from coarse.client.refusals import ANSWER_S, error_of, not_taken, require_fit, stalled, unregistered
from coarse.client.regions import KeyRegions
from coarse.client.states import DeviceStates
from coarse.errors import CapacityError, CoarseError, DeadRankError, InFlightError, MismatchError, NotInitializedError
from coarse.gpu.interface import is_on_gpu
from coarse.protocol.plan import runs_of
from coarse.protocol.records import Allocate, Descriptor, Free
from coarse.protocol.units import MIB
from coarse.storage.gpu_memory import GpuDeviceMemory
from coarse.storage.region import DeviceMemory

Part = TypeVar("Part")
_COPY_BYTES = 4 * MIB
"""A large tensor is announced in pieces of this size, so that devices add while the rest is copied."""


class Client:
    """One worker's client; may be called from several threads. What is in flight, its protocol knows alone."""

    def __init__(self, link: DeviceLink, memories: Mapping[int, DeviceMemory]) -> None:
        self.link = link
        self.protocol = link.protocol
        self._lock = link.lock
        self.memories = memories
        self._regions = KeyRegions(memories)
        self.lending = Lending(link, self._regions)
        self.arenas = Arenas(self.protocol)
        self.copies = GpuCopies(link, self._regions)
        """Copies of arrays or regions on GPUs."""
        self._has_gpu_memory = any(isinstance(memory, GpuDeviceMemory) for memory in memories.values())
        self._names: dict[int, str] = {}
        """Key -> its name, also where this worker has only asked for it."""
        self._has_left = False
        self.before_leaving: list[Callable[[], None]] = []
        """Callbacks to be called while devices still serve this worker, the last first."""
        self.states = DeviceStates(self.protocol.client, self.protocol.local_proxy, self.allocate)
        self._parts: dict[object, object] = {}
        self._num_models = 0
        self.counters: defaultdict[str, dict[str, float]] = defaultdict(_no_counts)
        """Key's name -> pushes, bytes pushed and pulled by copying, seconds waited."""

    def leave(self) -> None:
        """Say to all that this worker has shut down; nothing can be pushed afterwards."""
        with ExitStack() as ending:
            ending.callback(self._leave)
            for each in self.before_leaving:
                ending.callback(each)

    def _leave(self) -> None:
        self._has_left = True
        self.lending.take_all_back()
        self.copies.close()
        self.link.leave()

    def part(self, make: Callable[["Client"], Part]) -> Part:
        """Return this worker's part of a feature, which `make` makes when it is first asked for."""
        found = self._parts.get(make)
        if found is None:
            found = self._parts[make] = make(self)
        return found  # type: ignore[return-value]

    def next_model(self) -> int:
        """Return a number for the next model that all workers open."""
        number, self._num_models = self._num_models, self._num_models + 1
        return number

    # --- pushing

    def device_array(self, descriptor: Descriptor) -> np.ndarray:
        """Return this worker's region of a key as an array of its shape; pushing it moves no bytes."""
        while True:
            with self._lock:
                state = self._known(descriptor)
                if state.phase is not KeyPhase.REGISTERING:
                    if state.offset < 0 and state.failed is not None:
                        raise error_of(state.failed)
                    return self._regions.array(state, is_new=self.lending.is_elsewhere(state.key))
            self._await(state)

    def host_array(self, descriptor: Descriptor) -> np.ndarray:
        """Return this worker's region of a key for use on the host.

        For a region on a GPU this is an array that is copied there when it is pushed, and back.
        """
        region = self.device_array(descriptor)
        return self._regions.host_copy(descriptor, self.protocol.key(descriptor.name)) if is_on_gpu(region) else region

    def push(self, descriptor: Descriptor, array: np.ndarray) -> Handle:
        """Contribute to the key's next version; the handle is done, for the array has been copied."""
        handle = self.push_pull(descriptor, array, None)
        handle.leave_to_pull(array)
        return handle

    def push_pull(
        self,
        descriptor: Descriptor,
        array: np.ndarray | None,
        out: np.ndarray | None,
        *,
        present: bool = True,
        is_waited: bool = False,
    ) -> Handle:
        """Push and return the handle of the combined result, which is in `out` (None: a new array) after its `wait`.

        An array of None is in the region already, and `out` is the region (or its `host_array`). While a device makes
        the key's region, and while the key is under way for a result that nobody wants, this waits, and others may
        push. Where the caller waits at once (`is_waited`), or `array` and `out` are the same memory, that may be read
        and written until then (lending.py).

        Raises:
            InFlightError: the last result was not taken.
            MismatchError: the name has another shape, dtype or op, and failed, or lies in an array of `device_array`.
            NotInitializedError: this worker has shut down.
        """
        protocol = self.protocol
        if array is not None and out is not array and out is not None:
            require_fit(protocol.client, descriptor, out)
        if self._has_left:
            raise NotInitializedError("this call came after coarse.shutdown(); call coarse.init() first")
        while True:
            with self._lock:
                state = protocol.named.get(descriptor.name)
                if state is None or state.epoch != protocol.epoch or state.descriptor is not descriptor:
                    state = self._known(descriptor)
                if state.phase is KeyPhase.IDLE or not state.is_to_change:
                    protocol.begin(state.key, is_claimed=True)
                    if array is None and out is not None and out is self._regions.host_copies.get(state.key):
                        array = out
                    is_there = array is None or not present or self._regions.holds(state, array)
                    given = array if present else None
                    target = None if present and is_there else out
                    if self.lending.lend(state, given, target, is_waited=is_waited) or is_there:
                        if self._has_gpu_memory:
                            self.copies.announce(state, present=present)
                        else:
                            self.link.send(protocol.announce(state.key, 0, state.plan.num_shards, present=present))
                    else:
                        assert array is not None
                        self._copy_in(state, array, is_lasting=is_waited or out is array)
                    self.link.ring_bells()
                    counters = self.counters[descriptor.name]
                    counters["pushes"] += 1
                    counters["bytes"] += state.nbytes
                    return Handle(self, state.key, out, state.flight)
            self._await(state)

    def require_resumable(self, pushes: Iterable[tuple[Descriptor, np.ndarray]]) -> None:
        """Raise InFlightError if one of several calls of `push_pull_again` would go on with other values."""
        for descriptor, array in pushes:
            state = self.protocol.named.get(descriptor.name)
            if state is not None and state.stalled:
                self.protocol.require_resumable(state.key, self._digest(array))

    def push_pull_again(self, descriptor: Descriptor, array: np.ndarray, out: np.ndarray) -> Handle:
        """Push and return what `push_pull` returns, for a caller that waits at once and keeps no handle.

        Where such a wait has stalled, the same call with the same values goes on waiting and pushes nothing.
        """
        require_fit(self.protocol.client, descriptor, out)
        state = self.protocol.named.get(descriptor.name)
        if state is not None and state.stalled:
            self.protocol.resume(state.key, self._digest(array))
            return Handle(self, state.key, out, state.flight, array)
        handle = self.push_pull(descriptor, array, out, is_waited=True)
        handle.again = array
        return handle

    def stall(self, key: int, flight: int, array: np.ndarray) -> None:
        """Note that a call of `push_pull_again` has stalled; `array` is as its caller sees it now."""
        with self._lock:
            self.protocol.stall(key, flight, self._digest(array))

    def abandon(self, key: int, flight: int) -> None:
        """Abandon a push (ClientProtocol.abandon); takes no lock, since any thread may drop a handle at any time."""
        self.protocol.abandon(key, flight)

    def _copy_in(self, state: ClientKey, array: np.ndarray, *, is_lasting: bool) -> None:
        region = self._regions.view(state)
        if is_on_gpu(region) or is_on_gpu(array):
            self.copies.push(state, array, is_lasting=is_lasting)
            return
        plan = state.plan
        if state.nbytes <= _COPY_BYTES or not array.flags.c_contiguous:
            np.copyto(region.reshape(array.shape), array)
            self._regions.count("to", state, state.nbytes)
            self.link.send(self.protocol.announce(state.key, 0, plan.num_shards, present=True))
            return
        flat = array.reshape(-1)
        stride = max(1, _COPY_BYTES * plan.num_shards // max(1, state.nbytes))
        for first in range(0, plan.num_shards, stride):
            last = min(first + stride, plan.num_shards)
            begin, end = plan.bounds(first, last)
            region[begin:end] = flat[begin:end]
            self._regions.count("to", state, (end - begin) * flat.itemsize)
            self.link.send(self.protocol.announce(state.key, first, last, present=True))
            self.link.ring_bells()

    def require_quiet(self) -> None:
        """Raise InFlightError unless all results have been taken; of a name that failed there is none to take."""
        with self._lock:
            names = self.protocol.untaken()
        if names:
            raise InFlightError(
                f"rank {self.protocol.client}: routes cannot change while {names[:5]} are in flight; "
                "wait() for their handles first"
            )

    def require_complete(self, what: str) -> None:
        """Raise InFlightError unless the result of all that this worker has pushed is there."""
        with self._lock:
            self.link.read()
            names = [self.protocol.keys[key].descriptor.name for key in self.protocol.in_flight]
        if names:
            raise InFlightError(
                f"rank {self.protocol.client}: {what} while {sorted(names)[:5]} are in flight would "
                "drop what this worker contributed; wait() for their handles, or pull() them, first"
            )

    def join(self) -> int:
        """Count as zero until all workers have joined; who joined last.

        Raises:
            InFlightError: something that this worker pushed is not complete.
            DeadRankError: another worker has shut down without joining.
        """
        protocol = self.protocol
        self.require_complete("join()")
        self.link.tell(protocol.join())
        self.link.wait_for(
            lambda: protocol.last_joined is not None or protocol.join_failed is not None,
            math.inf,
            "all workers to join",
        )
        if protocol.last_joined is None:
            assert protocol.join_failed is not None
            failed = protocol.join_failed
            raise DeadRankError(f"rank {protocol.client}: {failed.text}", rank=failed.rank)
        return protocol.last_joined

    # --- taking results

    def pull(self, name: str, out: np.ndarray | None) -> Handle:
        """Return the handle of a name's result; a new array is made for it if `out` is None."""
        state = self.protocol.named.get(name)
        if state is not None and out is not None:
            require_fit(self.protocol.client, state.descriptor, out)
        key = self.protocol.key(name)
        self._names[key] = name
        return Handle(self, key, out)

    def is_complete(self, key: int) -> bool:
        """Return whether `take` would return, or raise, at once."""
        with self._lock:
            self.link.read()
            if self.protocol.is_complete(key):
                return True
            self.link.look()
            return self.link.has_failed

    def await_all(self, keys: Collection[int], timeout_s: float | None) -> None:
        """Return once `take` of each of these keys would return, or raise, at once."""
        protocol = self.protocol
        if not self.link.wait_until(lambda: all(protocol.is_complete(key) for key in keys), timeout_s):
            raise self._stalled_at(next(key for key in keys if not protocol.is_complete(key)), timeout_s)

    def take(
        self, key: int, out: np.ndarray | None, timeout_s: float | None
    ) -> tuple[np.ndarray, bool]:
        """Wait for a key's result, copying what is ready while the rest is under way, unless `out` is its region."""
        began_s = self.link.job_clock.now_s()
        copying = None
        is_done = partial(self.protocol.take, key)
        if out is None or out is not self._regions.arrays.get(key):
            copying = _Copying(out)
            is_done = partial(self._copy_out, key, copying)
        is_whole = False
        try:
            is_whole = self.link.wait_until(is_done, timeout_s)
        finally:
            if not is_whole:
                self.lending.take_back(key)
                self.copies.settle(key)  # nothing writes to `out` any more
        if not is_whole:
            raise self._stalled_at(key, timeout_s)
        with self._lock:
            state = self.protocol.keys[key]
            self.counters[state.descriptor.name]["wait_s"] += self.link.job_clock.now_s() - began_s
        taken = out if copying is None else copying.out
        assert taken is not None
        if key in self.copies.pulled:
            self.copies.land(key, taken)
        return taken, state.present

    def _copy_out(self, key: int, copying: "_Copying") -> bool:
        """Copy what has come since; whether the result is whole. See ClientProtocol.take."""
        self.copies.require_working()
        state = self.protocol.keys.get(key)
        if state is None or state.has_failed or not (state.version or state.awaited):
            return self.protocol.take(key)
        elsewhere = self.lending.find(key, copying.out)
        if elsewhere is not None:
            if not self.protocol.take(key):
                return False
            if copying.out is None:
                copying.out = np.empty_like(elsewhere)
            if copying.out is not elsewhere:
                np.copyto(copying.out, elsewhere)
            self.lending.end(key)
            return True
        region = self._regions.view(state)
        if copying.out is None:
            copying.out = np.empty(state.descriptor.shape, region.dtype)
        out = copying.out
        fresh = state.all_shards & ~state.awaited & ~copying.copied
        if fresh and not self._regions.holds(state, out):
            if is_on_gpu(region) or is_on_gpu(out):
                copying.copied |= self.copies.pull(state, out, fresh)
            elif not state.awaited and not copying.copied:  # all has come at once
                copying.copied = fresh
                np.copyto(out, region.reshape(out.shape))
                self._regions.count("from", state, region.nbytes)
            elif out.flags.c_contiguous:
                flat = out.reshape(-1)
                copying.copied |= fresh
                for first, last in runs_of(fresh):
                    begin, end = state.plan.bounds(first, last)
                    flat[begin:end] = region[begin:end]
                    self._regions.count("from", state, (end - begin) * flat.itemsize)
            elif not state.awaited:
                np.copyto(out, region.reshape(out.shape))
                self._regions.count("from", state, region.nbytes)
        return self.protocol.take(key)

    # --- regions

    def allocate(self, device: int, nbytes: int, *, is_of_key: bool = False) -> tuple[int, np.ndarray]:
        """Return device memory that is not synchronised: its offset and its bytes; `is_of_key`: among keys' regions."""
        token = self.protocol.next_token()
        request = Allocate(self.protocol.client, token, nbytes, is_of_key=is_of_key)
        answer = self.link.ask([ToDevice(device, request)], [token], "device memory")[0]
        if answer.offset < 0:  # type: ignore[union-attr]
            raise CapacityError(
                f"rank {self.protocol.client}: {answer.text}; raise device_capacity_bytes "  # type: ignore[union-attr]
                "or add a memory device to the partition"
            )
        offset: int = answer.offset  # type: ignore[union-attr]
        return offset, self.memories[device].view(offset, nbytes)

    def free(self, device: int, offset: int) -> None:
        """Return what `allocate` gave."""
        with self._lock:
            self.link.send([ToDevice(device, Free(offset))])
            self.link.ring_bells()

    def is_device_array(self, descriptor: Descriptor, array: np.ndarray) -> bool:
        """Return whether an array is this worker's region of the key."""
        state = self.protocol.named.get(descriptor.name)
        return state is not None and state.offset >= 0 and self._regions.holds(state, array)

    def links(self) -> dict[str, float]:
        """Return the bytes that this worker copied to and from each device."""
        return self._regions.links()

    def deregister(self, name: str) -> None:
        """Give back what a name has in device memory; see coarse.forget."""
        with self._lock:
            self.link.read()
            key = self.protocol.key(name)
            state = self.protocol.keys.get(key)
            records = self.protocol.deregister(name)
            self._names.pop(key, None)
            if state is not None:
                self.lending.deregister(state)
                self.copies.settle(key)
            self._regions.deregister(key)
            self.link.tell(records)

    def _await(self, state: ClientKey) -> None:
        """Return once a device has made a key's region, or has sent the result that no caller wants."""
        if not self.link.wait_until(lambda: not state.is_to_change, None):
            if state.phase is KeyPhase.REGISTERING:
                raise unregistered(self.protocol.client, state.descriptor, self.link.stall_timeout_s)
            raise self._stalled_at(state.key, None)

    def _known(self, descriptor: Descriptor) -> ClientKey:
        """Return the state of a key, and ask for its registration if this epoch has none; the lock is held."""
        state = self.protocol.named.get(descriptor.name)
        if state is not None and not state.descriptor.is_alike(descriptor):
            self._require_replaceable(state, descriptor)
            self.deregister(descriptor.name)
            state = None
        if state is not None and state.epoch == self.protocol.epoch:
            return state
        self._names[self.protocol.key(descriptor.name)] = descriptor.name
        route, offset = self.protocol.route(descriptor), -1
        if state is None:
            self.link.read()
            offset, records = self.arenas.take(route, descriptor.nbytes)
            self.link.send(records)
        try:
            self.link.send(self.protocol.register(descriptor, offset))
        except (CoarseError, TypeError, ValueError):  # a request that cannot be sent leaves the key as it was
            self.protocol.withdraw(descriptor.name, state)
            if offset >= 0:
                self.arenas.give_back(route, descriptor.nbytes)
            raise
        return self.protocol.named[descriptor.name]

    def _require_replaceable(self, state: ClientKey, descriptor: Descriptor) -> None:
        """Return where a name may stand for another shape, dtype or op from now on, as it must on all ranks."""
        rank, name = self.protocol.client, descriptor.name
        if state.failed is not None or state.key in self._regions.arrays:
            why = "which failed" if state.failed is not None else "an array in device memory that may still be in use"
            raise MismatchError(
                f"rank {rank}: {name!r} was first used as {state.descriptor}, {why}, and now comes as {descriptor}; "
                "use another name for another shape, dtype or op, or forget() this one on all ranks first"
            )
        if not state.is_free:
            raise not_taken(rank, name, f"was used as {descriptor} after {state.descriptor}")

    def _stalled_at(self, key: int, timeout_s: float | None) -> CoarseError:
        with self._lock:
            self.link.send(self.protocol.ask_who_is_missing(key))
        self.link.wait_until(lambda: self.protocol.have_all_answered(key), ANSWER_S)
        name = repr(self._names.get(key, f"key {key:#x}"))
        if key not in self.protocol.keys:
            name += ", which this rank never pushed,"
        waited_s = self.link.stall_timeout_s if timeout_s is None else timeout_s
        place = self.protocol.placement
        silent = [place.describe(place.num_clients + d) for d in self.protocol.silent_devices(key)]
        return stalled(self.protocol.client, name, waited_s, self.protocol.missing_clients(key), silent)

    def _digest(self, array: np.ndarray) -> bytes:
        values = np.ascontiguousarray(self.copies.on_host(array))
        return hashlib.blake2b(values.tobytes(), digest_size=16).digest()

    def count_push(self, descriptor: Descriptor) -> None:
        """Count one contribution of a key that goes another way."""
        counters = self.counters[descriptor.name]
        counters["pushes"] += 1
        counters["bytes"] += descriptor.nbytes


def _no_counts() -> dict[str, float]:
    return {"pushes": 0, "bytes": 0, "wait_s": 0.0}


class _Copying:
    """Destination of a result, and the shards that have been copied there."""

    def __init__(self, out: np.ndarray | None) -> None:
        self.out = out
        self.copied = 0
