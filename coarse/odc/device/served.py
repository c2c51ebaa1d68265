# Pure: no MPI, threads, clock or environment.
"""Model under on-demand communication on a memory device: shards to be read, sums, minibatches.

[Note: two phases] A device whose owners have all pieces that all workers say they have pushed tells every other device,
and when all have, it tells its workers. So a minibatch ends for all or for none, and a failure is everybody's.

[Note: early records] A worker that was told of the end may be a minibatch ahead of a device that was not yet. All
counts are therefore kept by minibatch. Sums are not: a piece of minibatch k + 1 needs every owner's publication k + 1,
before which each has read its sums of minibatch k.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from coarse.odc.layout import NO_TOKENS, OdcLayout, Spot, Spots
from coarse.odc.records import (
    OdcAdded,
    OdcCommitted,
    OdcCopied,
    OdcEnd,
    OdcFailed,
    OdcFetch,
    OdcFetched,
    OdcPublish,
    OdcPush,
    OdcQuery,
    OdcRequest,
    OdcRows,
    OdcShards,
    OdcStatus,
    OdcSummed,
    OdcSums,
)
from coarse.odc.steps import (
    OdcAdd,
    OdcAddInOrder,
    OdcDone,
    OdcMark,
    OdcMerge,
    OdcSend,
    OdcSetAside,
    OdcStore,
    Sent,
)
from coarse.odc.wide_sum import SkippedValue
from coarse.proxy.instructions import Instructions, Send
from coarse.strategy.sharding import Sum

_MOST_TOLD = 8
"""Number of values that did not fit and that errors name; all are marked."""


@dataclass(eq=False)
class _Minibatch:
    """State of one minibatch."""

    ends: dict[int, OdcEnd] = field(default_factory=dict)
    added: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    """(Worker, unit) -> number of its pieces that were added here."""
    started: defaultdict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    """(Owner, unit) -> parameters of which something was added."""
    merged: set[tuple[int, int, int]] = field(default_factory=set)
    """(Node, owner, unit) whose sums have come."""
    found: defaultdict[tuple[int, int], list[SkippedValue]] = field(default_factory=lambda: defaultdict(list))
    """(Owner, unit) -> values that did not fit."""
    waiting: dict[tuple[int, int], dict[int, "_Waiting"]] = field(default_factory=dict)
    """(Unit, number) -> the pieces that have come, by worker, for sums in the workers' order."""
    is_passed_on: bool = False
    """True if sums for other nodes were sent."""
    is_summed: bool = False
    summed: dict[int, OdcSummed] = field(default_factory=dict)
    """Records of devices that have all pieces, by device."""


@dataclass(eq=False)
class _Waiting:
    """Piece that waits for those of other workers."""

    sent: Sent
    mask: int
    aside: dict[int, int] | None
    """Number under which each owner's row was set aside; None: it lies in its slot."""


class ServedOdc:
    """Part of one device in one model; every event is answered by steps, in order."""

    def __init__(self, device: int, model: int, layout: OdcLayout, spots: Spots, num_clients: int) -> None:
        self.layout = layout
        self._device = device
        self._model = model
        self._spots = spots
        self._num_clients = num_clients
        self._owners = layout.owners_at(device)
        self._node = layout.node_of(self._owners[0])
        self._near = layout.near(self._node)
        self._trainable = [number for number, unit in enumerate(layout.declaration.units) if unit.segments]
        self._kept = [unit for unit in self._trainable if unit in layout.kept]
        self._dealt = tuple(
            owner for owner in layout.far(self._node)
            if layout.device_of(layout.agent(self._node, owner)) == device
        )  # fmt: skip
        """Owners of other nodes for whom sums are taken here."""
        self._minibatches: defaultdict[int, _Minibatch] = defaultdict(_Minibatch)
        self._copies: dict[tuple[int, int], int] = {}
        """(Owner, unit) -> contents that lie here, or were asked for."""
        self._are_here: set[tuple[int, int]] = set()
        self._num_aside = 0
        self._heard = dict.fromkeys(layout.members, 0)
        self._num_ended = dict.fromkeys(layout.members, 0)
        self._left: set[int] = set()
        self.failed: OdcFailed | None = None

    # --- publications and fetches

    def on_publish(self, record: OdcPublish) -> Instructions:
        """Tell of a worker's publication.

        Its own device tells the workers near and one device of each other node, which tells those there.
        """
        self._heard[record.client] += 1
        steps: Instructions = [Send(client, record) for client in self._near if client != record.client]
        if record.client in self._owners:
            others = [self.layout.devices_on(node)[0] for node in self.layout.nodes if node != self._node]
            steps += [self._to(device, record) for device in others]
        return steps

    def on_fetch(self, record: OdcFetch) -> Instructions:
        """Ask the devices that have the shards, except for those that the node has, or has asked for."""
        self._heard[record.client] += 1
        wanted = dict(zip(record.owners, record.contents, strict=True))
        steps: Instructions = []
        if record.landing < 0:
            here = [owner for owner in wanted if self._copies.get((owner, record.unit)) == wanted[owner]]
            landed = tuple(owner for owner in here if (owner, record.unit) in self._are_here)
            if landed:
                told = OdcCopied(self._model, record.unit, landed, tuple(wanted[owner] for owner in landed))
                steps.append(Send(record.client, told))
            for owner in here:
                del wanted[owner]
            for owner, contents in wanted.items():
                self._copies[owner, record.unit] = contents
                self._are_here.discard((owner, record.unit))
        by_device: dict[int, list[int]] = {}
        for owner in wanted:
            by_device.setdefault(self.layout.device_of(owner), []).append(owner)
        for device, owners in by_device.items():
            request = OdcRequest(
                record.client, self._device, self._model, record.minibatch, record.unit, tuple(owners),
                tuple(wanted[owner] for owner in owners), record.landing,
            )  # fmt: skip
            steps.append(self._to(device, request))
        return steps

    def on_request(self, record: OdcRequest) -> Instructions:
        """Send shards that another node's device asks for."""
        client, device, model, minibatch, unit, owners, contents, landing = record
        nbytes = self.layout.declaration.units[unit].shard_nbytes
        payload = tuple((self._spots.published(owner, unit), nbytes) for owner in owners)
        return [OdcSend(device, OdcShards(client, model, minibatch, unit, owners, contents, landing), payload)]

    def on_shards(self, record: OdcShards) -> Instructions:
        """Store shards of another node that have come."""
        nbytes, unit = self.layout.declaration.units[record.unit].shard_nbytes, record.unit
        steps: Instructions = []
        for place, owner in enumerate(record.owners):
            if record.landing < 0:
                target = self._spots.copy(self._node, owner, unit)
                self._are_here.add((owner, unit))
            else:
                target = self._spots.landed(record.client, unit, record.landing, owner)
            steps.append(OdcStore(place * nbytes, nbytes, target))
        if record.landing >= 0:
            return [*steps, Send(record.client, OdcFetched(self._model, record.minibatch, unit, record.owners))]
        copied = OdcCopied(self._model, unit, record.owners, record.contents)
        return [*steps, *(Send(client, copied) for client in self._near)]

    # --- pieces

    def on_push(self, record: OdcPush) -> Instructions:
        """Add or send the rows of a piece that lies in a slot of a worker of this node."""
        client, model, minibatch, unit, number, mask, slot = record
        self._heard[client] += 1
        sent = Sent(client, minibatch, slot, self._device)
        steps: Instructions = []
        for device, owners in self.layout.sends(self._device, client, unit).items():
            nbytes = self.layout.declaration.piece_nbytes(unit, mask)
            payload = tuple((self._spots.row(client, unit, mask, slot, owner), nbytes) for owner in owners)
            rows = OdcRows(client, self._device, model, minibatch, unit, number, mask, slot, owners)
            steps.append(OdcSend(device, rows, payload))
        owners = self.layout.adds(self._device, client, unit)
        if not owners:
            return steps
        if self.layout.declaration.sum is Sum.WORKER_ORDER:
            return [*steps, *self._in_turn(unit, number, _Waiting(sent, mask, None))]
        sources = [self._spots.row(client, unit, mask, slot, owner) for owner in owners]
        adds = [
            self._add(unit, owner, sent, mask, source, 0) for owner, source in zip(owners, sources, strict=True)
        ]
        return [*steps, *adds, OdcDone(self._model, unit, (sent,))]

    def on_rows(self, record: OdcRows) -> Instructions:
        """Add the rows of a piece that have come from another node."""
        self._heard[record.client] += 1
        sent = Sent(record.client, record.minibatch, record.slot, record.device)
        nbytes = self.layout.declaration.piece_nbytes(record.unit, record.mask)
        if self.layout.declaration.sum is Sum.WORKER_ORDER:
            aside, steps = {}, []
            for place, owner in enumerate(record.owners):
                self._num_aside += 1
                aside[owner] = self._num_aside
                steps.append(OdcSetAside(self._num_aside, place * nbytes, nbytes))
            return [*steps, *self._in_turn(record.unit, record.number, _Waiting(sent, record.mask, aside))]
        adds = [
            self._add(record.unit, owner, sent, record.mask, None, place * nbytes)
            for place, owner in enumerate(record.owners)
        ]
        return [*adds, OdcDone(self._model, record.unit, (sent,))]

    def _add(self, unit: int, owner: int, sent: Sent, mask: int, source: Spot | None, at: int) -> OdcAdd:
        minibatch = self._minibatches[sent.minibatch]
        started = minibatch.started[owner, unit]
        minibatch.started[owner, unit] |= mask
        target = self._spots.sums(self._node, owner, unit)
        return OdcAdd(self._model, unit, owner, sent, mask, started, source, at, target)

    def _in_turn(self, unit: int, number: int, piece: _Waiting) -> Instructions:
        """Add the n-th pieces of all workers once the last of them has come."""
        minibatch = self._minibatches[piece.sent.minibatch]
        waiting = minibatch.waiting.setdefault((unit, number), {})
        waiting[piece.sent.client] = piece
        if len(waiting) < len(self.layout.members):
            return []
        del minibatch.waiting[unit, number]
        pieces = [waiting[member] for member in self.layout.members]
        masks = {one.mask for one in pieces}
        if len(masks) > 1:
            return self._fail(
                "MismatchError", f"piece {number} of unit {unit} has gradients of other parameters on some workers, "
                "which sum='worker-order' does not add; use sum='int64'",
            )  # fmt: skip
        (mask,) = masks
        steps: Instructions = []
        for owner in self._owners:
            sources = tuple(
                self._spots.row(one.sent.client, unit, mask, one.sent.slot, owner) if one.aside is None
                else one.aside[owner] for one in pieces
            )  # fmt: skip
            target = self._spots.sums(self._node, owner, unit)
            is_first = not minibatch.started[owner, unit]
            minibatch.started[owner, unit] |= mask
            steps.append(OdcAddInOrder(self._model, unit, owner, mask, is_first, sources, target))
        return [*steps, OdcDone(self._model, unit, tuple(one.sent for one in pieces))]

    def on_found(self, add: OdcAdd, found: list[SkippedValue]) -> None:
        """Note values of a row that did not fit, by element of the owner's sums."""
        self._minibatches[add.sent.minibatch].found[add.owner, add.unit] += found

    def on_done(self, done: OdcDone) -> Instructions:
        """Note pieces that were added: their slots are free as far as this device is concerned."""
        steps: Instructions = []
        for sent in done.sent:
            self._minibatches[sent.minibatch].added[sent.client, done.unit] += 1
            added = OdcAdded(sent.client, self._model, sent.slot)
            steps.append(Send(sent.client, added) if sent.teller == self._device else self._to(sent.teller, added))
        return [*steps, *self._advance(done.sent[0].minibatch)]

    # --- the end of a minibatch

    def on_end(self, record: OdcEnd) -> Instructions:
        """Note that a worker has pushed all its pieces; its own device tells the others."""
        self._heard[record.client] += 1
        self._num_ended[record.client] = record.minibatch + 1
        self._minibatches[record.minibatch].ends[record.client] = record
        others = self.layout.devices if record.client in self._owners else ()
        steps: Instructions = [self._to(device, record) for device in others if device != self._device]
        return [*steps, *self._fail_for_left(), *self._advance(record.minibatch)]

    def on_sums(self, record: OdcSums, found: list[SkippedValue]) -> Instructions:
        """Add another node's sums for an owner."""
        minibatch = self._minibatches[record.minibatch]
        pair = record.owner, record.unit
        minibatch.merged.add((record.node, *pair))
        minibatch.found[pair] += found
        steps: Instructions = []
        if record.mask:
            target = self._spots.sums(self._node, *pair)
            steps.append(OdcMerge(self._model, record.unit, record.mask, minibatch.started[pair], target))
            minibatch.started[pair] |= record.mask
        return [*steps, *self._advance(record.minibatch)]

    def on_summed(self, record: OdcSummed) -> Instructions:
        """Note that a device has all pieces for all its owners."""
        self._minibatches[record.minibatch].summed[record.device] = record
        return self._advance(record.minibatch)

    def _advance(self, number: int) -> Instructions:
        """Return the steps that can be done now to end a minibatch; see [Note: two phases]."""
        minibatch = self._minibatches[number]
        steps: Instructions = []
        if self.failed is not None:
            return []
        if not minibatch.is_passed_on and self._have_all(minibatch, self._near, self._kept):
            minibatch.is_passed_on = True
            steps += [self._pass_on(number, owner, unit) for owner in self._dealt for unit in self._kept]
        if not minibatch.is_summed and self._has_all(minibatch):
            minibatch.is_summed = True
            if (failed := self._refusal(minibatch)) is not None:
                return [*steps, *self._fail(*failed)]
            steps += self._marks(minibatch)
            summed = self._summed(number, minibatch)
            minibatch.summed[self._device] = summed
            steps += [self._to(device, summed) for device in self.layout.devices if device != self._device]
        if len(minibatch.summed) == len(self.layout.devices):
            steps += self._commit(number, minibatch)
        return steps

    def _have_all(self, minibatch: _Minibatch, members: tuple[int, ...], units: list[int]) -> bool:
        """Return whether these workers have ended and all their pieces of these units were added here."""
        return all(
            member in minibatch.ends
            and all(minibatch.added[member, unit] == minibatch.ends[member].counts[unit] for unit in units)
            for member in members
        )

    def _has_all(self, minibatch: _Minibatch) -> bool:
        """Return whether all pieces of all workers for this device's owners were added."""
        if len(minibatch.ends) < len(self.layout.members):
            return False
        if self._is_uneven(minibatch):
            return True  # and a refusal
        direct = [unit for unit in self._trainable if unit not in self.layout.kept]
        far = self.layout.far(self._node)
        if not (self._have_all(minibatch, self._near, self._trainable) and self._have_all(minibatch, far, direct)):
            return False
        other_nodes = len(self.layout.nodes) - 1
        return len(minibatch.merged) == other_nodes * len(self._owners) * len(self._kept)

    def _is_uneven(self, minibatch: _Minibatch) -> bool:
        counts = {end.counts for end in minibatch.ends.values()}
        return self.layout.declaration.sum is Sum.WORKER_ORDER and len(counts) > 1

    def _refusal(self, minibatch: _Minibatch) -> tuple[str, str] | None:
        """Return the error's class and text if a minibatch cannot end, though all have ended it."""
        ends = [minibatch.ends[member] for member in self.layout.members]
        number = ends[0].minibatch
        if self._is_uneven(minibatch):
            counts = {end.client: sum(end.counts) for end in ends}
            return "MismatchError", (
                f"minibatch {number}: workers pushed {counts} pieces, and sum='worker-order' adds equally many of "
                "each; use sum='int64'"
            )
        silent = [end.client for end in ends if end.tokens == NO_TOKENS]
        if silent and len(silent) < len(ends):
            others = [end.client for end in ends if end.client not in silent]
            return "MismatchError", (
                f"minibatch {number}: workers {others} gave num_tokens to end_minibatch and workers {silent} did not; "
                "give it on all workers, 0 where there was none, or on none"
            )
        if not silent and not sum(end.tokens for end in ends) and any(any(end.counts) for end in ends):
            return "ConfigError", (
                f"minibatch {number}: all workers together gave num_tokens=0 and yet pushed gradients; give the number "
                "of tokens over which each worker's losses were summed"
            )
        return None

    def _pass_on(self, number: int, owner: int, unit: int) -> OdcSend:
        minibatch, declaration = self._minibatches[number], self.layout.declaration
        mask, found = minibatch.started[owner, unit], tuple(minibatch.found[owner, unit])
        record = OdcSums(self._model, number, self._node, owner, unit, mask, len(found))
        nbytes = declaration.sum_nbytes(unit)
        payload = ((self._spots.sums(self._node, owner, unit), nbytes),) if mask else ()
        return OdcSend(self.layout.device_of(owner), record, payload, found)

    def _marks(self, minibatch: _Minibatch) -> Instructions:
        return [
            OdcMark(self._model, unit, self._spots.sums(self._node, owner, unit), tuple(found))
            for (owner, unit), found in minibatch.found.items() if found and owner in self._owners
        ]  # fmt: skip

    def _summed(self, number: int, minibatch: _Minibatch) -> OdcSummed:
        masks = [0] * len(self.layout.declaration.units)
        for (owner, unit), mask in minibatch.started.items():
            if owner in self._owners:
                masks[unit] |= mask
        found = [
            (owner, unit, one.element, one.kind)
            for (owner, unit), some in minibatch.found.items() if owner in self._owners
            for one in some[:_MOST_TOLD]
        ]  # fmt: skip
        return OdcSummed(self._device, self._model, number, tuple(masks), tuple(found[:_MOST_TOLD]))

    def _commit(self, number: int, minibatch: _Minibatch) -> Instructions:
        tokens = [minibatch.ends[member].tokens for member in self.layout.members]
        total = NO_TOKENS if NO_TOKENS in tokens else sum(tokens)
        summed = [minibatch.summed[device] for device in self.layout.devices]
        masks = [0] * len(self.layout.declaration.units)
        for one in summed:
            masks = [mask | more for mask, more in zip(masks, one.masks, strict=True)]
        found = tuple(place for one in summed for place in one.found)[:_MOST_TOLD]
        del self._minibatches[number]
        committed = OdcCommitted(self._model, number, total, tuple(masks), found)
        return [Send(owner, committed) for owner in self._owners]

    # --- failures

    def on_leave(self, client: int) -> Instructions:
        """Handle a worker that has shut down, which others may wait for."""
        if client not in self.layout.members:
            return []
        self._left.add(client)
        return self._fail_for_left()

    def _fail_for_left(self) -> Instructions:
        for number, minibatch in self._minibatches.items():
            for client in sorted(self._left):
                if minibatch.ends and client not in minibatch.ends:
                    return self._fail(
                        "DeadRankError", f"worker {client} has shut down after {self._num_ended[client]} minibatches, "
                        f"and workers {sorted(minibatch.ends)} have ended minibatch {number}, counted from 0; let all "
                        "workers call end_minibatch, or optimizer.step(), equally often",
                        client,
                    )  # fmt: skip
        return []

    def _fail(self, error: str, text: str, client: int = -1) -> Instructions:
        if self.failed is not None:
            return []
        failed = OdcFailed(self._model, error, text, client)
        others = [self._to(device, failed) for device in self.layout.devices if device != self._device]
        return [*others, *self.on_failed(failed)]

    def on_failed(self, record: OdcFailed) -> Instructions:
        """Take a device's record that no minibatch can end any more."""
        if self.failed is not None:
            return []
        self.failed = record
        return [Send(client, record) for client in self._owners]

    def on_query(self, record: OdcQuery) -> Instructions:
        """Answer a worker's question about the records heard of the others."""
        heard, ended = (
            tuple(counts[member] for member in self.layout.members) for counts in (self._heard, self._num_ended)
        )
        status = OdcStatus(record.client, self._device, self._model, record.token, heard, ended)
        if record.client in self._near:
            return [Send(record.client, status)]
        return [self._to(self.layout.device_of(record.client), status)]

    def _to(self, device: int, record: Any) -> Send:  # noqa: ANN401
        return Send(self._num_clients + device, record)
