"""How a proxy synchronises keys: arrivals in, folds and ring steps out (COARSE III-F, IV-A)."""

from coarse.messages import Failed, Located, Push, Ready, RingChunk
from coarse.plan import Placement, RoutingTable
from coarse.proxy.instructions import Fold, Instruction, RingFinish, RingFold, Send
from coarse.proxy.keys import KeyState
from coarse.proxy.queues import ReadyRun
from coarse.proxy.ring_run import RingRun
from coarse.units import MIB

FOLD_BYTES = 8 * MIB
"""The most that one Fold covers, so that a more urgent key need not wait longer."""


class Synchronisation:
    """All keys of one proxy."""

    def __init__(self, device: int, placement: Placement) -> None:
        self._device = device
        self._placement = placement
        self._keys: dict[int, KeyState] = {}
        self._tables: dict[int, tuple[RoutingTable, ...]] = {}
        self._excused: set[int] = set()
        self._round = 0

    # --- what ranks agree on

    def use_tables(self, epoch: int, tables: tuple[RoutingTable, ...]) -> None:
        """The routing tables of an epoch are complete."""
        self._tables[epoch] = tables

    def settle_all(self) -> list[Instruction]:
        """Make the plans that waited for tables."""
        waiting = [state for state in self._keys.values() if state.plan is None]
        return [step for state in waiting for step in self._settle(state)]

    def on_located(self, located: Located, *, serve: bool) -> list[Instruction]:
        """A client has registered a key, here (`serve`) or at another device."""
        state = self._state(located.key, located.epoch)
        state.located[located.client] = located
        if serve:
            state.served.add(located.client)
        text = state.disagreement()
        if text and state.failed is None:
            state.failed = Failed(located.key, "MismatchError", text)
            return [Send(client, state.failed) for client in sorted(state.served)]
        if state.failed is not None:
            return [Send(located.client, state.failed)] if serve else []
        return self._settle(state)

    def excuse(self, client: int, round_: int) -> list[Instruction]:
        """A client has joined: from now on it counts as zero. Rounds that are over are ignored."""
        if round_ < self._round:
            return []
        self._excused.add(client)
        return [step for state in self._keys.values() for step in self._advance(state)]

    def begin_round(self, round_: int) -> None:
        """All clients have joined and go on: nobody is excused any more."""
        if round_ > self._round:
            self._round = round_
            self._excused.clear()

    def missing(self, key: int) -> tuple[int, ...]:
        """Clients whose registration or contribution a key waits for at this device."""
        state = self._keys.get(key)
        everybody = range(self._placement.num_clients)
        if state is None or state.queues is None:
            located = state.located if state is not None else {}
            return tuple(c for c in everybody if c not in located)
        return state.queues.missing(self._excused)

    # --- arrivals

    def on_push(self, push: Push) -> list[Instruction]:
        """A client announces shards."""
        if push.round > self._round:
            self.begin_round(push.round)
        state = self._state(push.key, push.epoch)
        if state.queues is None:
            state.early.append(push)
            return []
        return self._enqueue(state, push) + self._advance(state)

    def on_folded(self, key: int, first: int, last: int) -> list[Instruction]:
        """Shards [first, last) of a key are in their targets."""
        state = self._keys[key]
        state.outstanding -= 1
        for shard in range(first, last):
            state.versions[shard] = state.versions.get(shard, 0) + 1
        return self._report(state)

    def on_ring_folded(self, key: int, version: int, shard: int) -> list[Instruction]:
        """The local part of a ring is there."""
        state = self._keys[key]
        ring = state.rings[version, shard]
        run = state.ring_runs[version, shard]
        return [
            *ring.on_folded(present=bool(run.present)),
            *self._finish_ring(state, version, shard, ring),
        ]

    def on_chunk(self, header: RingChunk) -> list[Instruction]:
        """A chunk of a ring has come; it may be the first that this proxy hears of the shard."""
        state = self._keys.get(header.key)
        if state is None:
            state = self._keys[header.key] = KeyState(header.key, 0)
        if state.plan is None:
            state.early_chunks.append((header.version, header.shard, header.step, header.present))
            return []
        return self._take_chunk(state, header.version, header.shard, header.step, header.present)

    # --- within

    def _state(self, key: int, epoch: int) -> KeyState:
        state = self._keys.get(key)
        if state is None or state.epoch < epoch:
            fresh = KeyState(key, epoch)
            if state is not None:
                fresh.versions = state.versions
                fresh.early_chunks = state.early_chunks
            state = self._keys[key] = fresh
        return state

    def _settle(self, state: KeyState) -> list[Instruction]:
        tables = self._tables.get(state.epoch)
        if tables is None or len(state.located) < self._placement.num_clients or state.failed:
            return []
        pushes, chunks = state.settle(tables, self._placement, self._device)
        steps: list[Instruction] = []
        for push in pushes:
            steps += self._enqueue(state, push)
        for chunk in chunks:
            steps += self._take_chunk(state, *chunk)
        return steps + self._advance(state)

    def _enqueue(self, state: KeyState, push: Push) -> list[Instruction]:
        assert state.queues is not None
        if state.queues.on_push(push.client, push.first, push.last, present=push.present):
            return []
        text = f"rank {push.client} pushed {state.descriptor.name!r} again before its result was there"
        return [Send(push.client, Failed(push.key, "InFlightError", text))]

    def _advance(self, state: KeyState) -> list[Instruction]:
        if state.queues is None or state.plan is None:
            return []
        steps: list[Instruction] = []
        for run in state.queues.take_ready(self._excused):
            for first, last, alone in state.blocks:
                begin, end = max(first, run.first), min(last, run.last)
                if begin < end:
                    part = ReadyRun(begin, end, run.present, run.recipients)
                    steps += self._folds(state, part) if alone else self._rings(state, part)
        return steps + self._start_passive(state)

    def _start_passive(self, state: KeyState) -> list[Instruction]:
        """A proxy whose own clients contribute nothing joins each ring that others have begun."""
        assert state.plan is not None
        if set(state.plan.contributors_by_device[self._device]) - self._excused:
            return []
        steps: list[Instruction] = []
        for (version, shard), ring in state.rings.items():
            if not ring.started:
                state.ring_runs[version, shard] = ReadyRun(shard, shard + 1, (), ())
                steps.append(self._start_ring(state, version, shard))
        return steps

    def _folds(self, state: KeyState, run: ReadyRun) -> list[Instruction]:
        """The whole sum in one pass over the bytes, in pieces of at most FOLD_BYTES."""
        assert state.plan is not None
        descriptor = state.descriptor
        shard_bytes = max(1, descriptor.nbytes // state.plan.num_shards)
        stride = max(1, FOLD_BYTES // shard_bytes)
        steps: list[Instruction] = []
        for first in range(run.first, run.last, stride):
            last = min(first + stride, run.last)
            begin, end = state.plan.bounds(first, last)
            sources = state.regions(run.present, begin)
            targets = state.regions(run.recipients, begin)
            steps.append(
                Fold(
                    state.key, first, last, descriptor.dtype, descriptor.op, state.divisor, end - begin,
                    sources, targets, descriptor.priority,
                )
            )  # fmt: skip
            state.finished.append((first, last, run))
            state.outstanding += 1
        return steps

    def _rings(self, state: KeyState, run: ReadyRun) -> list[Instruction]:
        steps: list[Instruction] = []
        for shard in range(run.first, run.last):
            version = state.versions.get(shard, 0)
            state.ring_runs[version, shard] = run._replace(first=shard, last=shard + 1)
            steps.append(self._start_ring(state, version, shard))
        return steps

    def _start_ring(self, state: KeyState, version: int, shard: int) -> RingFold:
        ring = self._ring(state, version, shard)
        ring.started = True
        state.outstanding += 1
        run = state.ring_runs[version, shard]
        descriptor = state.descriptor
        assert state.plan is not None
        begin, end = state.plan.bounds(shard, shard + 1)
        sources = state.regions(run.present, begin)
        return RingFold(
            state.key, version, shard, descriptor.dtype, descriptor.op, end - begin, sources,
            descriptor.priority,
        )  # fmt: skip

    def _ring(self, state: KeyState, version: int, shard: int) -> RingRun:
        ring = state.rings.get((version, shard))
        if ring is None:
            assert state.plan is not None
            begin, end = state.plan.bounds(shard, shard + 1)
            ring = state.rings[version, shard] = RingRun(
                state.key,
                version,
                shard,
                end - begin,
                state.plan.members(shard),
                self._device,
                state.plan.direction(shard),
            )
        return ring

    def _take_chunk(
        self, state: KeyState, version: int, shard: int, step: int, present: bool
    ) -> list[Instruction]:
        ring = self._ring(state, version, shard)
        steps = self._start_passive(state)
        steps += ring.on_chunk(step, present=present)
        return steps + self._finish_ring(state, version, shard, ring)

    def _finish_ring(
        self, state: KeyState, version: int, shard: int, ring: RingRun
    ) -> list[Instruction]:
        if not ring.is_finished:
            return []
        run = state.ring_runs.pop((version, shard))
        del state.rings[version, shard]
        assert state.plan is not None
        begin, _ = state.plan.bounds(shard, shard + 1)
        state.versions[shard] = version + 1
        state.outstanding -= 1
        arrived = run._replace(present=run.recipients if ring.present else ())
        state.finished.append((shard, shard + 1, arrived))
        targets = state.regions(run.recipients, begin)
        finish = RingFinish(state.key, version, shard, state.divisor, targets)
        return [finish, *self._report(state)]

    def _report(self, state: KeyState) -> list[Instruction]:
        """Tell the clients once nothing of the key is under way: one record for many shards."""
        if state.outstanding:
            return []
        finished, state.finished = state.finished, []
        if len(finished) > 1:
            finished.sort()
        merged: list[tuple[int, int, tuple[int, ...], bool]] = []
        for first, last, run in finished:
            present = bool(run.present)
            if merged and merged[-1][1] == first and merged[-1][2:] == (run.recipients, present):
                merged[-1] = (merged[-1][0], last, run.recipients, present)
            else:
                merged.append((first, last, run.recipients, present))
        return [
            Send(client, Ready(state.key, first, last, present))
            for first, last, recipients, present in merged
            for client in recipients
        ]
