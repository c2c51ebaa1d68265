"""The client's live driver: copies into device memory, writes records, waits on the doorbell."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from coarse.client.handle import Handle, Pushed
from coarse.client.link import DeviceLink
from coarse.client.protocol import ClientKey, KeyPhase, ToDevice
from coarse.client.refusals import (
    ANSWER_S,
    error_of,
    missing_clients,
    not_resumed,
    not_taken,
    require_fit,
    silent_devices,
    stalled,
    unregistered,
)
from coarse.client.regions import KeyRegions
from coarse.errors import CapacityError, CoarseError, InFlightError, MismatchError, StallError
from coarse.protocol.records import Allocate, Descriptor, Free
from coarse.protocol.shard_sets import mask_of, runs_of
from coarse.protocol.units import MIB
from coarse.storage.region import DeviceMemory

_COPY_BYTES = 4 * MIB
"""A large tensor is announced in pieces of this size, so that devices add while the rest is copied."""


class Client:
    """One worker's client; may be called from several threads."""

    def __init__(self, link: DeviceLink, memories: Mapping[int, DeviceMemory]) -> None:
        self.link = link
        self.protocol = link.protocol
        self._lock = link.lock
        self.memories = memories
        self._regions = KeyRegions(memories)
        self._names: dict[int, str] = {}
        self._stalled: dict[int, _Stalled] = {}
        """Key -> the call of `push_pull_again` whose wait has stalled."""
        self.counters: dict[str, dict[str, float]] = {}
        """Key's name -> pushes, bytes pushed and pulled by copying, seconds waited."""

    # --- pushing

    def device_array(self, descriptor: Descriptor) -> np.ndarray:
        """This worker's region of a key as an array of its shape; pushing it moves no bytes."""
        with self._locked(descriptor) as state:
            return self._regions.array(state)

    def push(self, descriptor: Descriptor, array: np.ndarray | None, *, present: bool = True) -> ClientKey:
        """Contribute to the key's next version; returns the key's state. An array of None is in the region already.

        Raises InFlightError where the last result was not taken, MismatchError where the name
        was used with another shape, dtype or op.
        """
        self._await_abandoned(descriptor)
        with self._locked(descriptor) as state:
            self._require_idle(state)
            self.protocol.begin(state.key)
            if array is None or not present or self._regions.holds(state, array):
                self._announce(state, 0, state.plan.num_shards, present)
            else:
                self._copy_in(state, array)
            self.link.ring_bells()
            self.count_push(descriptor)
            return state

    def push_pull(
        self, descriptor: Descriptor, array: np.ndarray | None, out: np.ndarray, *, present: bool = True
    ) -> Handle:
        """Push and return the handle of the combined result, which `wait` copies into `out`."""
        if out is not array:
            require_fit(self.protocol.client, descriptor, out)
        state = self.push(descriptor, array, present=present)
        return Handle(self, state.key, out, state.flight)

    def push_pull_again(self, descriptor: Descriptor, array: np.ndarray, out: np.ndarray) -> Handle:
        """What `push_pull` returns, for a caller that waits at once and keeps no handle.

        Where such a wait has stalled, the same call with the same values goes on waiting and pushes nothing.
        """
        require_fit(self.protocol.client, descriptor, out)
        key = self.protocol.key(descriptor.name)
        stalled = self._stalled.pop(key, None)
        state = self.protocol.keys.get(key)
        if stalled is None or state is None or state.flight != stalled.flight or state.is_taken:
            state = self.push(descriptor, array)
        elif stalled.digest != _digest(array):
            self._stalled[key] = stalled
            raise not_resumed(self.protocol.client, descriptor.name)
        return _Resumed(self, state, array, out)

    def note_stalled(self, key: int, flight: int, array: np.ndarray) -> None:
        """A call of `push_pull_again` has stalled; `array` is as its caller sees it now."""
        self._stalled[key] = _Stalled(flight, _digest(array))

    def abandon(self, key: int, flight: int) -> None:
        """See ClientProtocol; takes no lock, since any thread may drop a handle at any time."""
        self.protocol.abandon(key, flight)

    def pushed(self, descriptor: Descriptor, array: np.ndarray) -> Handle:
        """Push; the handle is done, for the array has been copied."""
        self.push(descriptor, array)
        return Pushed(array)

    def _copy_in(self, state: ClientKey, array: np.ndarray) -> None:
        region = self._regions.view(state)
        plan = state.plan
        if not array.flags.c_contiguous:
            np.copyto(region.reshape(array.shape), array)
            self._regions.count("to", state, region.nbytes)
            self._announce(state, 0, plan.num_shards, True)
            return
        flat = array.reshape(-1)
        stride = max(1, _COPY_BYTES * plan.num_shards // max(1, state.descriptor.nbytes))
        for first in range(0, plan.num_shards, stride):
            last = min(first + stride, plan.num_shards)
            begin, end = plan.bounds(first, last)
            region[begin:end] = flat[begin:end]
            self._regions.count("to", state, (end - begin) * flat.itemsize)
            self._announce(state, first, last, True)
            self.link.ring_bells()

    def _announce(self, state: ClientKey, first: int, last: int, present: bool) -> None:
        self.link.send(self.protocol.announce(state.key, first, last, present=present))

    def require_quiet(self) -> None:
        """InFlightError unless all results have been taken; of a name that failed there is none to take."""
        with self._lock:
            names = [s.descriptor.name for s in self.protocol.keys.values() if not s.is_free and s.failed is None]
            if names:
                raise InFlightError(
                    f"rank {self.protocol.client}: routes cannot change while {names[:5]} are in flight; "
                    "wait() for their handles first"
                )

    def require_complete(self, what: str) -> None:
        """InFlightError unless the result of all that this worker has pushed is there."""
        with self._lock:
            self.link.read()
            names = [self.protocol.keys[key].descriptor.name for key in self.protocol.in_flight]
            if names:
                raise InFlightError(
                    f"rank {self.protocol.client}: {what} while {sorted(names)[:5]} are in flight would "
                    "drop what this worker contributed; wait() for their handles, or pull() them, first"
                )

    def _require_idle(self, state: ClientKey) -> None:
        name = state.descriptor.name
        if state.failed is not None:
            raise error_of(state.failed)
        if not state.is_free:
            raise not_taken(self.protocol.client, name, "was pushed again")

    # --- taking results

    def pull(self, name: str, out: np.ndarray | None) -> Handle:
        """The handle of a name's result; a new array is made for it where `out` is None."""
        key = self.protocol.key(name)
        state = self.protocol.keys.get(key)
        if state is not None and out is not None:
            require_fit(self.protocol.client, state.descriptor, out)
        self._names[key] = name
        return Handle(self, key, out)

    def is_complete(self, key: int) -> bool:
        """Whether `take` would return, or raise, at once."""
        with self._lock:
            self.link.read()
            state = self.protocol.keys.get(key)
            if state is not None and (state.failed or (state.phase is KeyPhase.IDLE and state.version)):
                return True
            self.link.look()
            return self.link.has_failed

    def take(
        self, key: int, out: np.ndarray | None, timeout_s: float | None
    ) -> tuple[np.ndarray, bool]:
        """Wait for a key's result, copying what is ready while the rest is under way."""
        began_s = self.link.clock.now_s()
        progress = _Progress(out)

        def advanced() -> bool:
            state = self.protocol.keys.get(key)
            if state is None:
                return False
            if state.failed is not None:
                raise error_of(state.failed)
            if not state.version and state.phase is not KeyPhase.IN_FLIGHT:
                return False
            self._copy_out(state, progress)
            return not state.awaited

        if not self.link.wait_until(advanced, timeout_s):
            raise self._stalled_at(key, timeout_s)
        with self._lock:
            state = self.protocol.keys[key]
            state.is_taken = True
            self._count(state.descriptor.name)["wait_s"] += self.link.clock.now_s() - began_s
            assert progress.out is not None
            return progress.out, state.present

    def _copy_out(self, state: ClientKey, progress: "_Progress") -> None:
        region = self._regions.view(state)
        if progress.out is None:
            progress.out = np.empty(state.descriptor.shape, region.dtype)
        out = progress.out
        everything = mask_of(0, state.plan.num_shards)
        fresh = everything & ~state.awaited & ~progress.copied
        if not fresh or self._regions.holds(state, out):
            return
        if not out.flags.c_contiguous:
            if not state.awaited:
                np.copyto(out, region.reshape(out.shape))
                self._regions.count("from", state, region.nbytes)
            return
        flat = out.reshape(-1)
        progress.copied |= fresh
        for first, last in runs_of(fresh):
            begin, end = state.plan.bounds(first, last)
            flat[begin:end] = region[begin:end]
            self._regions.count("from", state, (end - begin) * flat.itemsize)

    # --- regions

    def allocate(self, device: int, nbytes: int) -> tuple[int, np.ndarray]:
        """Device memory that is not synchronised: its offset and its bytes."""
        token = self.protocol.next_token()
        request = Allocate(self.protocol.client, token, nbytes)
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
        """Whether an array is this worker's region of the key."""
        state = self.protocol.keys.get(self.protocol.key(descriptor.name))
        return state is not None and state.offset >= 0 and self._regions.holds(state, array)

    def links(self) -> dict[str, float]:
        """Bytes that this worker copied to and from each device."""
        return self._regions.links()

    def forget(self, name: str) -> None:
        """Give back what a name has in device memory; see coarse.forget."""
        with self._lock:
            self.link.read()
            key = self.protocol.key(name)
            state = self.protocol.keys.get(key)
            if state is not None and state.failed is None and (state.phase is not KeyPhase.IDLE or not state.is_free):
                raise not_taken(self.protocol.client, name, "cannot be forgotten")
            self._regions.forget(key)
            self.link.tell(self.protocol.forget(name))

    @contextlib.contextmanager
    def _locked(self, descriptor: Descriptor) -> Iterator[ClientKey]:
        """Hold the lock over the state of a registered key; it is free while a device makes the key's region."""
        while True:
            with self._lock:
                state = self._known(descriptor)
                if state.phase is not KeyPhase.REGISTERING:
                    if state.offset < 0 and state.failed is not None:
                        raise error_of(state.failed)
                    yield state
                    return
            if not self.link.wait_until(lambda state=state: state.phase is not KeyPhase.REGISTERING, None):  # type: ignore[misc]
                raise unregistered(self.protocol.client, descriptor, self.link.stall_timeout_s)

    def _await_abandoned(self, descriptor: Descriptor) -> None:
        """Return once the key is not under way for a result that nobody wants."""
        state = self.protocol.keys.get(self.protocol.key(descriptor.name))
        if state is None or not state.is_abandoned:
            return
        if not self.link.wait_until(lambda: state.phase is not KeyPhase.IN_FLIGHT, None):
            raise self._stalled_at(state.key, None)

    def _known(self, descriptor: Descriptor) -> ClientKey:
        """The state of a key, whose registration is asked for where this epoch has none; the lock is held."""
        key = self.protocol.key(descriptor.name)
        state = self.protocol.keys.get(key)
        if state is not None and (known := state.descriptor)[1:4] != descriptor[1:4]:
            raise MismatchError(
                f"rank {self.protocol.client}: {descriptor.name!r} was first used as {known} and now "
                f"comes as {descriptor}; use another name for another shape, dtype or op"
            )
        if state is None or state.epoch != self.protocol.epoch:
            self._names[key] = descriptor.name
            self._register(key, descriptor)
            state = self.protocol.keys[key]
        return state

    def _register(self, key: int, descriptor: Descriptor) -> None:
        """Ask for a region; a request that cannot be sent leaves the key as it was."""
        known = self.protocol.keys.get(key)
        try:
            self.link.send(self.protocol.register(descriptor))
        except (CoarseError, TypeError, ValueError):
            self.protocol.withdraw(key, known)
            raise

    def _stalled_at(self, key: int, timeout_s: float | None) -> CoarseError:
        with self._lock:
            self.link.send(self.protocol.ask_who_is_missing(key))
        self.link.wait_until(lambda: self.protocol.have_all_answered(key), ANSWER_S)
        name = repr(self._names.get(key, f"key {key:#x}"))
        if key not in self.protocol.keys:
            name += ", which this rank never pushed,"
        waited_s = self.link.stall_timeout_s if timeout_s is None else timeout_s
        place = self.protocol.placement
        silent = [place.describe(place.num_clients + d) for d in silent_devices(self.protocol, key)]
        return stalled(self.protocol.client, name, waited_s, missing_clients(self.protocol, key), silent)

    def count_push(self, descriptor: Descriptor) -> None:
        """Count one contribution of a key, whichever way it goes."""
        counters = self._count(descriptor.name)
        counters["pushes"] += 1
        counters["bytes"] += descriptor.nbytes

    def _count(self, name: str) -> dict[str, float]:
        return self.counters.setdefault(name, {"pushes": 0, "bytes": 0, "wait_s": 0.0})


class _Stalled(NamedTuple):
    """A wait that has stalled."""

    flight: int
    digest: bytes
    """Of the values with which the call may be made again."""


class _Resumed(Handle):
    """The handle of a call that waits at once, and may be made again after a StallError."""

    def __init__(self, client: Client, state: ClientKey, array: np.ndarray, out: np.ndarray) -> None:
        super().__init__(client, state.key, out, state.flight)
        self._note_stalled = partial(client.note_stalled, state.key, state.flight, array)

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """See Handle; a StallError leaves the push to the next call."""
        try:
            return super().wait(timeout)
        except StallError:
            self._flight = 0
            self._note_stalled()
            raise


def _digest(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()


class _Progress:
    """Where a result goes, and which of its shards have been copied there."""

    def __init__(self, out: np.ndarray | None) -> None:
        self.out = out
        self.copied = 0
