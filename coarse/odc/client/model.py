"""Live driver of a worker in on-demand communication: copies of device memory, records, and waits.

[Note: signs of life] A worker may compute for longer than any wait should last. So a wait that has lasted a while asks
the devices for news of the workers that it waits for, and goes on as long as there is more than before.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import NamedTuple

import numpy as np

from coarse import errors
from coarse.client.client import Client
from coarse.client.protocol import ToDevice
from coarse.client.refusals import ANSWER_S
from coarse.errors import CapacityError, CoarseError, DeadRankError, InFlightError, StallError
from coarse.odc.client.protocol import Fetch, OdcClient
from coarse.odc.layout import NO_TOKENS, OdcDeclaration, OdcLayout, OdcSizes, Spot, Spots
from coarse.odc.records import OdcCommitted, OdcFailed, OdcOpen, OdcQuery
from coarse.odc.steps import OdcTake
from coarse.odc.sums import sums_in
from coarse.odc.wide_sum import WideSum
from coarse.protocol.fragments import fragments

_LOOKS_PER_STALL = 4


class Other(NamedTuple):
    """Model beside the one whose minibatch ends."""

    model: "OdcModel"
    publish: Callable[[], None]
    """Function that publishes it on this worker, where that was not done."""


class OdcModel:
    """Worker's part of a model; all members open theirs in the same way and order."""

    def __init__(self, number: int, client: Client, declaration: OdcDeclaration, name: str) -> None:
        """Take device memory; `open` is to be called next, once all members have theirs.

        Raises:
            CapacityError: this worker's memory device has no room for its region.
        """
        self._client = client
        self._link = client.link
        self._memories = client.memories
        self.declaration = declaration
        self.name = name
        self.layout = OdcLayout(declaration, client.protocol.placement)
        self.machine = OdcClient(client.protocol.client, number, self.layout)
        self._number = number
        self._tokens = count(1)
        self._spots: Spots | None = None
        self._ended_tokens = NO_TOKENS
        region_nbytes = self.layout.region(client.protocol.client).nbytes
        try:
            self._base, _ = client.allocate(self.machine.device, region_nbytes)
        except CapacityError as refused:
            raise CapacityError(f"mode 'odc', {name}: {_explained(self.layout, region_nbytes)}; {refused}") from refused
        client.protocol.models[number] = self.machine.on_record
        self._link.note_sizes(number, partial(OdcSizes, self.layout))

    def open(self) -> None:
        """Tell the devices, and return once those of this node know of all members."""
        client, pieces = self.machine.client, fragments(self.declaration.to_text())
        opens = [OdcOpen(client, self._number, self._base, is_last, piece) for is_last, piece in pieces]
        near = set(self.layout.devices_on(self.machine.node))
        self._link.tell([ToDevice(self.machine.device, record) for record in opens])
        self._wait(lambda: self.machine.opened == near, lambda: (), f"devices to open {self.name}")
        self._spots = Spots(self.layout, dict(zip(self.layout.members, self.machine.bases, strict=True)))

    def own_work(self, point: str | None = None) -> AbstractContextManager[None]:
        """Return a context of a worker's own work; see DeviceLink."""
        return self._link.own_work(point)

    def release(self) -> None:
        """Give the memory of a model back that was never opened."""
        self._client.free(self.machine.device, self._base)
        del self._client.protocol.models[self._number]

    # --- publishing

    def publication(self, unit: int) -> np.ndarray:
        """Return the place of this worker's shard of a unit, (n,) uint8.

        Others read it once it is published.
        """
        return self._view(self._where.published(self.machine.client, unit), self._shard_nbytes(unit))

    def publish(self, first: int, last: int, changed: Sequence[bool]) -> None:
        """Publish units [first, last) for this minibatch; `changed`: by unit whether their bytes changed."""
        with self.own_work(), self._link.lock:
            self.machine.publish(first, last, list(changed))
            self._flush()

    # --- fetching

    def fetch(self, unit: int, what: str) -> Fetch:
        """Begin to fetch a unit, for `what`; return at once."""
        with self.own_work(what), self._link.lock:
            fetch = self.machine.fetch(unit)
            self._flush()
        return fetch

    def read(self, fetch: Fetch, out: np.ndarray, what: str) -> None:
        """Wait for a unit and copy it into `out`, (p*n,) uint8, a row for each member.

        `what` is the text of the fetch.

        Raises:
            StallError: an owner has not published, and nothing was heard of it for the stall limit.
            DeadRankError: a rank is gone, or an owner has shut down.
        """
        unit, machine = fetch.unit, self.machine
        awaited = (
            f"parameters of unit {unit} of {self.name} for minibatch {machine.minibatch}, which their owners publish "
            "when a forward of theirs begins, at end_minibatch, after optimizer.step(), or by "
            "coarse.torch.publish(model)"
        )
        with self.own_work(f"wait {what}"):
            self._link.note_wait(f"wait {what}")
            try:
                self._wait(lambda: self._is_fetched(fetch), lambda: machine.unpublished_by(unit), awaited)
                self._link.spend("odc", machine.reads(fetch), OdcSizes(self.layout, machine.device))
                nbytes = self._shard_nbytes(unit)
                for row, owner in zip(out.reshape(len(self.layout.members), -1), self.layout.members, strict=True):
                    row[:nbytes] = self._view(self._read_from(fetch, owner), nbytes)
            finally:
                with self._link.lock:
                    machine.end_fetch(fetch)
                    self._flush()

    def _is_fetched(self, fetch: Fetch) -> bool:
        self.machine.hurry(fetch)
        self._flush()
        return self.machine.is_fetched(fetch)

    def _read_from(self, fetch: Fetch, owner: int) -> Spot:
        node = self.machine.node
        if self.layout.node_of(owner) == node or fetch.unit in self.layout.kept:
            return self._where.copy(node, owner, fetch.unit)
        return self._where.landed(self.machine.client, fetch.unit, fetch.landing, owner)

    # --- pushing

    def slot(self, unit: int, mask: int, what: str) -> tuple[int, np.ndarray]:
        """Wait for a staging slot; return its number, and (p*n,) uint8 for a piece, a row for each member.

        `what` is a text for the piece.

        Raises:
            StallError: devices have not added the pieces in the slots for the stall limit.
        """
        taken: list[int] = []

        def take() -> bool:
            if (slot := self.machine.take_slot()) is not None:
                taken.append(slot)
            return bool(taken)

        others = tuple(member for member in self.layout.members if member != self.machine.client)
        with self.own_work(what):
            self._link.note_wait(what)
            self._wait(take, lambda: others, f"room for a gradient of {self.name}; devices add what others push")
        nbytes = len(self.layout.members) * self.declaration.piece_nbytes(unit, mask)
        first = self._where.row(self.machine.client, unit, mask, taken[0], self.layout.members[0])
        return taken[0], self._view(first, nbytes)

    def push(self, unit: int, mask: int, slot: int) -> None:
        """Push a piece that lies in a slot; return at once."""
        with self.own_work(), self._link.lock:
            self.machine.push(unit, mask, slot)
            self._flush()

    # --- ending

    def end(self, tokens: float = NO_TOKENS) -> None:
        """Tell that this worker has pushed all its pieces; return at once.

        After a wait that stalled it may be called again.

        Raises:
            InFlightError: with another number of tokens than before.
        """
        with self.own_work(f"end of {self.name}"), self._link.lock:
            if self.machine.has_ended:
                if tokens != self._ended_tokens:
                    raise InFlightError(
                        f"rank {self.machine.client}: minibatch {self.machine.minibatch} of {self.name} was ended with "
                        f"num_tokens={self._ended_tokens:g}, and is ended again with {tokens:g}; call end_minibatch "
                        "again with the same number to go on waiting"
                    )
                return
            self._ended_tokens = tokens
            self._link.note_end(f"end of {self.name}", self.layout.members)
            self.machine.end(tokens)
            self._flush()

    def committed(self, others: Sequence["Other"] = ()) -> OdcCommitted:
        """Wait until all have ended the minibatch; the next one begins.

        `others` are models that are published during the wait if an awaited worker wants them; see [Note: several
        models].

        Raises:
            MismatchError, ConfigError: workers that end it in different ways.
            StallError: a worker has not, and nothing was heard of it for the stall limit.
            DeadRankError: a rank is gone, or has shut down.
        """
        what = f"all workers to end minibatch {self.machine.minibatch} of {self.name}"
        judged: set[tuple[OdcModel, int]] = set()
        while True:
            self._wait(lambda: self.machine.committed is not None or bool(_ahead(others, judged)), None, what)
            with self._link.lock:
                if self.machine.committed is not None:
                    return self.machine.take_committed()
                ahead = _ahead(others, judged)
            judged.update((other.model, member) for other, member in ahead)
            awaited = self._not_ended(self._heard())
            for other in dict.fromkeys(other for other, member in ahead if member in awaited):
                other.publish()

    def sums(self, unit: int) -> WideSum | np.ndarray:
        """Return this worker's own sums of a unit in device memory, valid until it publishes."""
        spot = self._where.sums(self.machine.node, self.machine.client, unit)
        self._link.spend("odc", [OdcTake(unit, spot.device)], OdcSizes(self.layout, self.machine.device))
        return sums_in(self.declaration, unit, self._view(spot, self.declaration.sum_nbytes(unit)))

    # --- within

    @property
    def _where(self) -> Spots:
        assert self._spots is not None, "open comes first"
        return self._spots

    def _shard_nbytes(self, unit: int) -> int:
        return self.declaration.units[unit].shard_nbytes

    def _view(self, spot: Spot, nbytes: int) -> np.ndarray:
        return self._memories[spot.device].view(spot.offset, nbytes)

    def _flush(self) -> None:
        """Send the machine's records; the lock is held."""
        if self.machine.out:
            self._link.send(self.machine.out)
            self.machine.out.clear()
            self._link.ring_bells()

    def _wait(
        self, is_done: Callable[[], bool], awaited: Callable[[], tuple[int, ...]] | None, what: str
    ) -> None:
        """Wait for something; see [Note: signs of life].

        `awaited` returns the members that the wait takes; None: those that have not ended this minibatch, as devices
        say.
        """
        look_s = self._link.stall_timeout_s / _LOOKS_PER_STALL
        heard: dict[int, int] | None = None
        silent_looks = 0
        while not self._link.wait_until(lambda: self._is_so(is_done, awaited), look_s):
            found = self._heard()
            missing = self._not_ended(found) if awaited is None else awaited()
            now = {member: found[member][0] for member in missing if member in found}
            silent_looks = silent_looks + 1 if heard is not None and now == heard else 1
            heard = now
            if silent_looks >= _LOOKS_PER_STALL:
                raise StallError(_stalled(self.machine.client, what, missing, found, self._link.stall_timeout_s),
                                 missing=missing)  # fmt: skip

    def _is_so(self, is_done: Callable[[], bool], awaited: Callable[[], tuple[int, ...]] | None) -> bool:
        """Return whether a wait is over; the lock is held, and records were read."""
        self._flush()
        if (failed := self.machine.failed) is not None:
            raise self._error_of(failed)
        if is_done():
            return True
        left = self._link.left_of(awaited()) if awaited is not None else ()
        if left:
            raise self._link.left_error(left, f"mode 'odc' ({self.name})")
        return False

    def _error_of(self, failed: OdcFailed) -> CoarseError:
        text = f"rank {self.machine.client}: {self.name}: {failed.text}"
        if failed.client >= 0:
            return DeadRankError(text, rank=self._client.protocol.placement.ranks[failed.client])
        made: CoarseError = getattr(errors, failed.error)(text)
        return made

    def _heard(self) -> dict[int, tuple[int, int]]:
        """Return the numbers of each member's records that devices have heard, and of its ended minibatches."""
        machine, token = self.machine, next(self._tokens)
        near = self.layout.devices_on(machine.node)
        by = {device: device if device in near else machine.device for device in self.layout.devices}
        queries = {device: OdcQuery(machine.client, device, self._number, token) for device in by}
        self._link.tell([ToDevice(by[device], query) for device, query in queries.items()])
        keys = [(device, token) for device in self.layout.devices]
        self._link.wait_until(lambda: all(key in machine.statuses for key in keys), ANSWER_S)
        answers = [machine.statuses.pop(key) for key in keys if key in machine.statuses]
        return {
            member: (sum(answer.heard[place] for answer in answers), max(answer.ended[place] for answer in answers))
            for place, member in enumerate(self.layout.members if answers else ())
        }  # fmt: skip

    def _not_ended(self, found: dict[int, tuple[int, int]]) -> tuple[int, ...]:
        return tuple(member for member, (_, ended) in found.items() if ended <= self.machine.minibatch)


def _ahead(others: Sequence[Other], judged: set[tuple[OdcModel, int]]) -> list[tuple[Other, int]]:
    """Return (other model, member that is ahead in it) without those that were judged; the lock is held."""
    return [
        (other, member)
        for other in others
        for member in other.model.machine.ahead()
        if (other.model, member) not in judged
    ]


def _explained(layout: OdcLayout, nbytes: int) -> str:
    """Return the uses of a worker's region, in bytes, for people."""
    declaration = layout.declaration
    published = sum(unit.shard_nbytes for unit in declaration.units)
    sums = sum(declaration.sum_nbytes(unit) for unit in range(len(declaration.units)))
    staging = declaration.num_slots * declaration.slot_nbytes
    others = max(nbytes - published - sums - staging, 0)
    return (
        f"{nbytes} bytes of device memory were wanted: {published} for published shards, {sums} for "
        f"{declaration.sum} sums, {staging} for {declaration.num_slots} pieces under way, {others} for shards and sums "
        "of other nodes"
    )


def _stalled(
    client: int, what: str, missing: tuple[int, ...], found: dict[int, tuple[int, int]], limit_s: float
) -> str:
    who = "; ".join(
        f"worker {member} was heard of {found[member][0]} times and has ended {found[member][1]} minibatches"
        for member in missing if member in found
    )  # fmt: skip
    return (
        f"rank {client}: waited too long for {what}: nothing was heard of workers {list(missing)} for {limit_s:g} s "
        f"({who or 'no device answered'}); see whether they hang, or raise stall_timeout_s"
    )
