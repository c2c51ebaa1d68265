"""Loans of this worker to the devices of its node: tensors in ordinary memory, which they read and write there.

Copying a large tensor to a device and its result back moves as many bytes again as the sum itself. So a tensor that
nobody else needs until its result is there stays where it is, and devices reach it through the kernel
(storage/lent.py).

[Note: what is lent] A call that waits lends what it was given and where its result goes. One that returns at once lends
only where both are the same memory, which its caller leaves alone until `wait` has returned. What is lent is kept alive
until its result has been taken. A wait that ends in any error before, or a worker that leaves, takes it back: then what
was contributed lies in the region, as if it had been copied.
"""

import contextlib
import secrets
import weakref
from typing import NamedTuple

import numpy as np

from coarse.client.link import DeviceLink
from coarse.client.protocol import ClientKey, KeyPhase, ToDevice
from coarse.client.refusals import not_kept
from coarse.client.regions import KeyRegions
from coarse.errors import CoarseError
from coarse.gpu.interface import address_of, is_on_gpu
from coarse.protocol.dtypes import STORAGE
from coarse.protocol.plan import mask_of, runs_of
from coarse.protocol.records import Lend, Reach, Reclaim
from coarse.storage.lent import allow_others, is_lendable

_ANSWER_S = 10.0
"""Seconds that a call that gives up waits for devices to give its loans back; they may have other sums to take
first."""


class Loan(NamedTuple):
    """Loan of a key's push under way."""

    source: np.ndarray | None
    """The contribution; None where this worker contributes nothing."""
    target: np.ndarray
    """Array to which its result goes."""


class Lending:
    """The loans of one worker; all of its methods but `open` and `take_back` are called with the link's lock held."""

    def __init__(self, link: DeviceLink, regions: KeyRegions) -> None:
        self._least_bytes = 0
        """The size from which on tensors are lent; 0 where devices do not reach this worker's memory."""
        self._link = link
        self._regions = regions
        self._loans: dict[int, Loan] = {}
        self._reclaims: dict[int, dict[int, int]] = {}
        """Key that is being taken back -> device -> token of its answer."""
        self._told: dict[int, tuple[int, int, int]] = {}
        """Key -> (epoch, source, target) as devices know it."""
        self._holders: dict[int, set[int]] = {}
        """Key -> devices that hold a Lend of it, of any epoch."""
        self._results: dict[int, weakref.ref[np.ndarray]] = {}
        """Key -> where its last result is, and nowhere else."""
        self._pulled: set[int] = set()
        """Keys whose results a caller asks devices for, so that they had better be there."""

    def open(self, devices: tuple[int, ...], least_bytes: int) -> None:
        """Lend tensors of at least so many bytes from now on.

        Loans begin only if the devices of this node can read and write a value in this process, which they are asked
        to.
        """
        allow_others()
        word = np.array([secrets.randbits(62)], np.int64)
        protocol = self._link.protocol
        tokens = [protocol.next_token() for _ in devices]
        reaches = [
            ToDevice(device, Reach(protocol.client, token, address_of(word), int(word[0])))
            for device, token in zip(devices, tokens, strict=True)
        ]
        answers = self._link.ask(reaches, tokens, "this worker's memory")
        if not any(answer.text for answer in answers):  # type: ignore[union-attr]
            self._least_bytes = least_bytes

    def lend(self, state: ClientKey, source: np.ndarray | None, target: np.ndarray | None, *, is_waited: bool) -> bool:
        """Lend what a push is about to contribute, where that may be lent, and say so to the devices.

        A `source` of None: nothing is contributed. `is_waited`: the caller waits for the result before it goes on.
        """
        if self._loans:
            self._sweep()
        is_large = 0 < self._least_bytes <= state.nbytes
        if not is_large and state.key not in self._results and state.key not in self._holders:
            return False  # as most are: nothing to forget, and nobody to tell
        self._forget(state.key)  # a push whose result nobody took
        lends = target is not None and is_large and self._may_lend(state, source, target, is_waited)
        at = (state.epoch, 0, 0)
        if lends:
            assert target is not None
            at = (state.epoch, 0 if source is None else address_of(source), address_of(target))
            self._loans[state.key] = Loan(source, target)
            self._results[state.key] = weakref.ref(target)
            if source is not None:
                self._regions.count("to", state, state.nbytes)
        if lends or state.key in self._holders:
            self._tell(state, at)
        return lends

    def find(self, key: int, out: np.ndarray | None) -> np.ndarray | None:
        """Return the array of a key's result, now or to come, that is in no region; None if it is in the region.

        Raises:
            NotKeptError: it was taken, and lies in another array than `out`.
        """
        if key in self._reclaims:
            self._settle(key)
        loan = self._loans.get(key)
        if loan is not None:
            return loan.target
        result = self._results.get(key)
        if result is None:
            return None
        if out is None or result() is not out:
            self._pulled.add(key)
            raise not_kept(self._link.protocol.client, self._link.protocol.keys[key].descriptor)
        return out

    def is_elsewhere(self, key: int) -> bool:
        """Return whether a key's last result is in no region."""
        return key in self._results

    def end(self, key: int) -> None:
        """Note that a key's result has been taken."""
        if self._loans.pop(key, None) is not None:
            state = self._link.protocol.keys[key]
            self._regions.count("from", state, state.nbytes)

    def deregister(self, state: ClientKey) -> None:
        """Note that a key is this worker's no more."""
        if state.key in self._holders:
            self._tell(state, (state.epoch, 0, 0))
        self._told.pop(state.key, None)
        self._forget(state.key)
        self._pulled.discard(state.key)

    def take_back(self, key: int, answer_s: float = _ANSWER_S) -> None:
        """Have no device touch what a key has lent: afterwards its contribution, or its result, is in the region.

        A key that failed has neither, and what was lent may be gone. What a device that does not answer in time, or has
        died, may still touch is kept alive; its answer counts whenever it comes.
        """
        protocol, link = self._link.protocol, self._link
        with link.lock:
            loan, state = self._loans.get(key), protocol.keys.get(key)
            if loan is None or state is None:
                return
            if key not in self._reclaims:
                if loan.source is not None:
                    self._copy(state, state.awaited, loan.source)
                tokens = {device: protocol.next_token() for device in _devices_of(state)}
                link.send([ToDevice(device, Reclaim(protocol.client, key, t)) for device, t in tokens.items()])
                self._reclaims[key] = tokens
        with contextlib.suppress(CoarseError):
            link.wait_until(lambda: self._settle(key), answer_s)

    def _settle(self, key: int) -> bool:
        """Return whether no loan of a key is left: all devices have answered, or its result is whole.

        What a device did before its answer lies where it was lent, and what it did later in the region. One that has
        not answered did all of its shards before.
        """
        protocol = self._link.protocol
        tokens, loan, state = self._reclaims.get(key), self._loans.get(key), protocol.keys.get(key)
        if tokens is None or loan is None or state is None:
            return True
        has_failed = state.phase is KeyPhase.FAILED
        if not all(token in protocol.answers for token in tokens.values()) and (state.awaited or has_failed):
            return False
        for device, token in tokens.items():
            done = protocol.done_at(token)
            own = sum(mask_of(first, last) for at, first, last in state.targets if at == device)
            self._copy(state, own if done is None else own & done, loan.target)
        self._forget(key)
        return True

    def take_all_back(self) -> None:
        """Take all loans back (`take_back`) and wait for each device's answer, since this worker leaves."""
        for key in list(self._loans):
            self.take_back(key, self._link.stall_timeout_s)

    # --- within

    def _forget(self, key: int) -> None:
        """Forget the loans of a key's last push; devices that were to give them back hold no Lend of it."""
        self._loans.pop(key, None)
        self._results.pop(key, None)
        tokens = self._reclaims.pop(key, None)
        if tokens is not None:
            for token in tokens.values():
                self._link.protocol.end_reclaim(token)
            self._told.pop(key, None)
            left = self._holders.pop(key, set()) - tokens.keys()
            if left:
                self._holders[key] = left

    def _may_lend(
        self, state: ClientKey, source: np.ndarray | None, target: np.ndarray, is_waited: bool
    ) -> bool:
        """Return whether a tensor that is large enough is to be lent; it may have been smaller, or larger, before."""
        if state.key in self._pulled:
            return False
        given = (target,) if source is None else (source, target)
        if any(is_on_gpu(array) for array in given):
            return False
        storage = STORAGE[state.descriptor.dtype]
        if any(a.dtype != storage or a.nbytes != state.nbytes or not a.flags.c_contiguous for a in given):
            return False
        is_in_place = source is None or address_of(source) == address_of(target)
        if not target.flags.writeable or not (is_waited or is_in_place):
            return False
        if not is_in_place and _overlap(source, target):
            return False
        for loan in self._loans.values():
            if _overlap(target, loan.target) or _overlap(target, loan.source) or _overlap(source, loan.target):
                return False
        return not any(self._regions.reach(a) for a in given) and all(is_lendable(a) for a in given)

    def _sweep(self) -> None:
        """Drop the loans of pushes whose results have come and will not be taken."""
        keys = self._link.protocol.keys
        for key in [key for key in self._loans if keys[key].is_free and keys[key].phase is not KeyPhase.FAILED]:
            if key in self._reclaims:
                self._settle(key)
            self.end(key)

    def _tell(self, state: ClientKey, at: tuple[int, int, int]) -> None:
        if self._told.get(state.key) == at:
            return
        self._told[state.key] = at
        own = set(_devices_of(state))
        holders = self._holders.pop(state.key, set())
        if at[1] or at[2]:
            self._holders[state.key] = own
        _, source, target = at
        for device in sorted(own | holders):
            here = (source, target) if device in own else (0, 0)
            lend = Lend(self._link.protocol.client, state.key, state.device, state.offset, state.nbytes, *here)
            self._link.send([ToDevice(device, lend)])

    def _copy(self, state: ClientKey, shards: int, array: np.ndarray) -> None:
        """Copy shards to the region, unless the key has failed."""
        if state.phase is KeyPhase.FAILED:
            return
        flat, region = array.reshape(-1), self._regions.view(state)
        for first, last in runs_of(shards):
            begin, end = state.plan.bounds(first, last)
            region[begin:end] = flat[begin:end]


def _devices_of(state: ClientKey) -> tuple[int, ...]:
    """Return the devices that add a key's shards."""
    return tuple({device: None for device, _, _ in state.targets})


def _overlap(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Return whether two contiguous arrays have a byte in common."""
    if one is None or other is None:
        return False
    first, second = address_of(one), address_of(other)
    return first < second + other.nbytes and second < first + one.nbytes
