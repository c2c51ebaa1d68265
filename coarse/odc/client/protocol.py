# Pure: no MPI, threads, clock or environment.
"""Worker's state machine of on-demand communication: publish, fetch, push, end minibatch (ODC, 2026).

[Note: versions] All count minibatches equally. A worker publishes each unit once in each, and a fetch in minibatch k
waits for publication k of every owner. No publication k + 1 can come before: it follows the end of minibatch k, which
no worker has reached that may still fetch. So one place for each shard is enough.

[Note: several models] A worker that waits for the end of a minibatch of one model may not have published another one,
whose optimizer is to step afterwards, and others may want that one before they come to the end: it had no microbatch.
So it publishes the other one once a worker is `ahead` in it that has not ended the minibatch that is waited for. Where
that worker has ended it, it wants nothing before all have, and is ahead because it has stepped since: news of the end
is still under way. A worker says that it has published before it says that it ends; so a worker that is known to be
ahead, and is then found not to have ended, was ahead before.

[Note: contents] A publication names the minibatch in which its bytes last changed. Where a node keeps shards, it
fetches only those that have changed since, so frozen ones once.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from coarse.client.protocol import ToDevice
from coarse.odc.layout import NO_TOKENS, NUM_LANDINGS, OdcLayout
from coarse.odc.records import (
    OdcAdded,
    OdcCommitted,
    OdcCopied,
    OdcEnd,
    OdcFailed,
    OdcFetch,
    OdcFetched,
    OdcOpened,
    OdcPublish,
    OdcPush,
    OdcStatus,
)
from coarse.odc.steps import OdcRead


@dataclass(eq=False)
class Fetch:
    """Unit on its way to a worker."""

    unit: int
    landing: int = -1
    """Landing place; -1: the fetch needs none, or has none yet."""
    asked: set[int] = field(default_factory=set)
    """Owners whose shards were asked for."""
    landed: set[int] = field(default_factory=set)
    """Owners whose shards lie in the landing place."""
    is_over: bool = False
    """True if it is not wanted any more; its landing place is free once all requested shards have come."""


class OdcClient:
    """State of one worker in one model; records to be sent gather in `out`."""

    def __init__(self, client: int, model: int, layout: OdcLayout) -> None:
        self.client = client
        self.model = model
        self.layout = layout
        self.node = layout.node_of(client)
        self.device = layout.device_of(client)
        self.minibatch = 0
        self.out: list[ToDevice] = []
        self.opened: set[int] = set()
        """Devices that know the places of all regions."""
        self.bases: tuple[int, ...] = ()
        """Offsets of regions; see OdcOpened."""
        self.failed: OdcFailed | None = None
        self.statuses: dict[tuple[int, int], OdcStatus] = {}
        """(Device, token) -> its answer."""
        num_units = len(layout.declaration.units)
        self.published = {member: [-1] * num_units for member in layout.members}
        """Minibatch of the last publication, by owner and unit."""
        self._num_published = [0] * num_units
        """Number of owners that have published each unit in this minibatch."""
        self.contents = {member: [-1] * num_units for member in layout.members}
        self._copied: dict[tuple[int, int], int] = {}
        """(Owner, unit) -> contents that the node keeps."""
        self._asked_copies: dict[tuple[int, int], int] = {}
        self._fetches: list[Fetch] = []
        self._landings = list(range(NUM_LANDINGS))
        self._slots = {slot: 0 for slot in range(layout.declaration.num_slots)}
        """Number of devices that have still to add the piece in each slot."""
        self._taken: set[int] = set()
        """Slots that are being filled."""
        self.counts = [0] * num_units
        self.has_ended = False
        self.committed: OdcCommitted | None = None
        self._far = layout.far(self.node)
        self._is_far = frozenset(self._far)
        self._num_uncopied = [len(self._far)] * num_units
        """Number of owners elsewhere whose contents of each unit the node does not keep."""

    # --- publishing

    def publish(self, first: int, last: int, changed: list[bool]) -> None:
        """Publish units [first, last) of this worker's region, for this minibatch.

        `changed` tells by unit whether its bytes changed since the last publication.
        """
        contents = []
        for unit in range(first, last):
            assert self.published[self.client][unit] < self.minibatch, "a unit is published once in a minibatch"
            if changed[unit - first]:
                self.contents[self.client][unit] = self.minibatch
            self.published[self.client][unit] = self.minibatch
            self._num_published[unit] += 1
            contents.append(self.contents[self.client][unit])
        self._tell(OdcPublish(self.client, self.model, self.minibatch, first, last, tuple(contents)))

    def is_published(self, unit: int) -> bool:
        """Return whether this worker has published its shard of a unit in this minibatch."""
        return self.published[self.client][unit] == self.minibatch

    def have_all_published(self, unit: int) -> bool:
        """Return whether every owner has published a unit in this minibatch."""
        return self._num_published[unit] == len(self.published)

    def ahead(self) -> tuple[int, ...]:
        """Return owners that have published a unit in this minibatch that this worker has not.

        It knows of some publications late.
        """
        lacking = [
            unit for unit, num in enumerate(self._num_published) if num and not self.is_published(unit)
        ]  # fmt: skip
        if not lacking:
            return ()
        return tuple(
            owner for owner, units in self.published.items() if any(units[unit] == self.minibatch for unit in lacking)
        )

    def unpublished_by(self, unit: int) -> tuple[int, ...]:
        """Return owners that have not published a unit in this minibatch, as far as this worker knows."""
        return tuple(owner for owner, units in self.published.items() if units[unit] != self.minibatch)

    # --- fetching

    def fetch(self, unit: int) -> Fetch:
        """Begin to fetch a unit; `end_fetch` it once it `is_fetched` and was read."""
        fetch = Fetch(unit)
        self._fetches.append(fetch)
        self._ask()
        return fetch

    def is_fetched(self, fetch: Fetch) -> bool:
        """Return whether every owner's shard can be read."""
        if not self.have_all_published(fetch.unit):
            return False
        if fetch.unit in self.layout.kept:
            return not self._num_uncopied[fetch.unit]
        return len(fetch.landed) == len(self._far)

    def hurry(self, fetch: Fetch) -> None:
        """Give a fetch that is waited for a landing place, if it has none.

        A fetch that was to be read later gives up its own, and is made again.
        """
        if fetch.landing >= 0 or fetch.unit in self.layout.kept or not self._far:
            return
        for other in self._fetches:
            if other.landing >= 0 and not other.is_over and len(other.landed) == len(self._far):
                self._landings.append(other.landing)
                other.landing, other.asked, other.landed = -1, set(), set()
                self._fetches.remove(fetch)
                self._fetches.insert(0, fetch)
                self._ask()
                return

    def reads(self, fetch: Fetch) -> list[OdcRead]:
        """Return the copies by which a fetched unit is read."""
        layout, is_kept = self.layout, fetch.unit in self.layout.kept
        by_device = Counter(
            layout.device_of(layout.agent(self.node, owner)) if is_kept or owner not in self._is_far else self.device
            for owner in layout.members
        )
        return [OdcRead(fetch.unit, device, num_shards) for device, num_shards in by_device.items()]

    def end_fetch(self, fetch: Fetch) -> None:
        """End a fetch that was read, or is not wanted any more; another may land in its place."""
        fetch.is_over = True
        self._let_go(fetch)

    def _let_go(self, fetch: Fetch) -> None:
        if not fetch.is_over or len(fetch.landed) < len(fetch.asked):
            return
        self._fetches.remove(fetch)
        if fetch.landing >= 0:
            self._landings.append(fetch.landing)
            self._ask()

    def _has_copy(self, owner: int, unit: int) -> bool:
        return self._copied.get((owner, unit)) == self.contents[owner][unit]

    def _ask(self) -> None:
        """Ask for shards of other nodes that are published and were not asked for."""
        for fetch in [fetch for fetch in self._fetches if not fetch.is_over]:
            self._ask_of(fetch, self._far)

    def _ask_of(self, fetch: Fetch, owners: Sequence[int]) -> None:
        if fetch.unit in self.layout.kept:
            if self._num_uncopied[fetch.unit]:
                self._ask_node(fetch.unit, owners)
        elif self._far:
            self._ask_for(fetch, owners)

    def _ask_node(self, unit: int, owners: Sequence[int]) -> None:
        by_device: dict[int, list[int]] = {}
        for owner in owners:
            contents = self.contents[owner][unit]
            is_here = self._has_copy(owner, unit) or self._asked_copies.get((owner, unit)) == contents
            if self.published[owner][unit] == self.minibatch and not is_here:
                self._asked_copies[owner, unit] = contents
                agent = self.layout.agent(self.node, owner)
                by_device.setdefault(self.layout.device_of(agent), []).append(owner)
        for device, asked in by_device.items():
            self._send_fetch(device, unit, asked, -1)

    def _ask_for(self, fetch: Fetch, owners: Sequence[int]) -> None:
        if fetch.landing < 0:
            if not self._landings:
                return
            fetch.landing, owners = self._landings.pop(0), self._far
        asked = [
            owner for owner in owners
            if owner not in fetch.asked and self.published[owner][fetch.unit] == self.minibatch
        ]  # fmt: skip
        if asked:
            fetch.asked.update(asked)
            self._send_fetch(self.device, fetch.unit, asked, fetch.landing)

    def _send_fetch(self, device: int, unit: int, owners: list[int], landing: int) -> None:
        contents = tuple(self.contents[owner][unit] for owner in owners)
        fetch = OdcFetch(self.client, self.model, self.minibatch, unit, tuple(owners), contents, landing)
        self.out.append(ToDevice(device, fetch))

    # --- pushing

    def take_slot(self) -> int | None:
        """Return a staging slot for a piece; None while devices have not added the pieces of all slots."""
        for slot, left in self._slots.items():
            if not left and slot not in self._taken:
                self._taken.add(slot)
                return slot
        return None

    def push(self, unit: int, mask: int, slot: int) -> None:
        """Push a piece of a unit that lies in a slot which was taken."""
        assert not self.has_ended, "a piece after the end of its minibatch"
        self._taken.remove(slot)
        self._slots[slot] = self.layout.num_answers(self.client, unit)
        push = OdcPush(self.client, self.model, self.minibatch, unit, self.counts[unit], mask, slot)
        self.counts[unit] += 1
        self.out += [ToDevice(device, push) for device in self.layout.told(self.client, unit)]

    # --- ending

    def end(self, tokens: float = NO_TOKENS) -> None:
        """End the minibatch of this worker, which has pushed all its pieces."""
        assert not self.has_ended, "a minibatch ends once"
        self.has_ended = True
        self._tell(OdcEnd(self.client, self.model, self.minibatch, tokens, tuple(self.counts)))

    def take_committed(self) -> OdcCommitted:
        """Return the record of the minibatch that all have ended; the next one begins."""
        committed = self.committed
        assert committed is not None, "not all have ended this minibatch"
        self.committed = None
        self.has_ended = False
        self.counts = [0] * len(self.counts)
        self.minibatch += 1
        self._num_published = [
            sum(minibatch == self.minibatch for minibatch in of_unit)
            for of_unit in zip(*self.published.values(), strict=True)
        ]
        return committed

    # --- events

    def on_record(self, record: Any) -> None:  # noqa: ANN401
        """Take a record of a device."""
        match record:
            case OdcPublish():
                self._take_publication(record)
            case OdcFetched():
                for fetch in self._fetches:
                    if fetch.unit == record.unit and set(record.owners) <= fetch.asked - fetch.landed:
                        fetch.landed.update(record.owners)
                        self._let_go(fetch)
                        break
            case OdcCopied():
                for owner, contents in zip(record.owners, record.contents, strict=True):
                    had = self._has_copy(owner, record.unit)
                    self._copied[owner, record.unit] = contents
                    self._num_uncopied[record.unit] += had - self._has_copy(owner, record.unit)
            case OdcAdded():
                self._slots[record.slot] -= 1
            case OdcCommitted():
                self.committed = record
            case OdcOpened():
                self.opened.add(record.device)
                self.bases = record.bases
            case OdcFailed():
                self.failed = self.failed or record
            case OdcStatus():
                self.statuses[record.device, record.token] = record
            case _:
                raise AssertionError(f"a worker was sent {record}")

    def _take_publication(self, record: OdcPublish) -> None:
        owner = record.client
        for unit in range(record.first, record.last):
            had = self._has_copy(owner, unit)
            self.published[owner][unit] = record.minibatch
            self.contents[owner][unit] = record.contents[unit - record.first]
            self._num_published[unit] += record.minibatch == self.minibatch
            if owner in self._is_far:
                self._num_uncopied[unit] += had - self._has_copy(owner, unit)
        if owner in self._is_far:
            for fetch in [fetch for fetch in self._fetches if not fetch.is_over]:
                if record.first <= fetch.unit < record.last:
                    self._ask_of(fetch, (owner,))

    def _tell(self, record: OdcPublish | OdcEnd) -> None:
        self.out.append(ToDevice(self.device, record))
