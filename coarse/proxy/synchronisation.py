# Pure: no MPI, threads, clock or environment.
"""Synchronisation of keys by a proxy: arrivals in, reductions and ring steps out (COARSE III-F, IV-A).

[Note: deregistration] A client deregisters a key when it has taken all results. Once all clients have, no device
touches their regions any more, and each drops the key as soon as it has heard so from all: only the last
chunk of a ring may still be on its way to a device without a client in it, which drops the key then. A client that
has deregistered a key and registers its name anew pushes the old key no more: pushes of others that wait for that
client fail, as for one that has shut down. Until then they wait, for it may join.
"""

from collections import defaultdict

from coarse.protocol.plan import Facts, Placement
from coarse.protocol.records import Failed, Located, Push, Ready, RingChunk
from coarse.protocol.units import MIB
from coarse.proxy.exchange_runs import RingRun, StarRun
from coarse.proxy.instructions import Instruction, Reduce, RingFinish, RingId, RingReduce, Send
from coarse.proxy.keys import KeyState
from coarse.proxy.queues import ReadyRun, merged_results
from coarse.storage.versions import VersionTable

FOLD_BYTES = 8 * MIB
"""Most bytes that one Reduce covers, so that a more urgent key need not wait longer."""


class Synchronisation:
    """All keys of one proxy, each epoch of a key by itself."""

    def __init__(self, device: int, placement: Placement) -> None:
        self._device = device
        self._placement = placement
        self.keys: dict[tuple[int, int], KeyState] = {}
        """State of each (key, epoch)."""
        self._epochs: defaultdict[int, list[int]] = defaultdict(list)
        """Epochs in which each key has a state."""
        self._facts: dict[int, tuple[Facts, ...]] = {}
        self._excused: set[int] = set()
        self._left: set[int] = set()
        self._deregistered: defaultdict[int, set[int]] = defaultdict(set)
        """Clients that have deregistered each key, until all have."""
        self._old_keys: defaultdict[str, set[int]] = defaultdict(set)
        """Keys of each name that some clients have deregistered."""
        self._round = 0
        self.versions = VersionTable()
        """Results of this proxy's shards, by key."""

    # --- what ranks agree on

    def use_facts(self, epoch: int, facts: tuple[Facts, ...]) -> list[Instruction]:
        """Take all clients' facts of an epoch, and make the plans that waited for them.

        Keys of the epoch before the last are forgotten: a client sends its table for an epoch only
        once it has all results of the epochs before.
        """
        self._facts[epoch] = facts
        self._facts.pop(epoch - 2, None)
        for state in list(self.keys.values()):
            if state.epoch <= epoch - 2 and not state.outstanding:
                self._drop(state)
        waiting = [state for state in self.keys.values() if state.epoch == epoch]
        return [step for state in waiting for step in self._settle(state)]

    def on_located(self, located: Located, *, serve: bool) -> list[Instruction]:
        """Note that a client has registered a key, here (`serve`) or at another device."""
        state = self._state(located.key, located.epoch)
        replaced = self._replaced_by(located) if self._deregistered else []
        state.located[located.client] = located
        if located.key in self._deregistered:
            self._old_keys[located.descriptor.name].add(located.key)
        if serve:
            state.served.add(located.client)
        if state.failed is not None:
            return [*replaced, *([Send(located.client, state.failed)] if serve else [])]
        text = state.disagreement()
        if text:
            return [*replaced, *self.on_failed(Failed(located.key, located.epoch, "MismatchError", text))]
        return [*replaced, *self._settle(state), *self._fail_if_left(state)]

    def _replaced_by(self, located: Located) -> list[Instruction]:
        """Return what follows for a name's old keys if a client uses the name for something else than before."""
        client, keys = located.client, self._old_keys.get(located.descriptor.name, ())
        old = [key for key in keys if client in self._deregistered.get(key, ())]
        states = [state for key in old if key != located.key for state in self._states_of(key)]
        for state in states:
            state.replaced_by.add(client)
        return [step for state in states for step in self._fail_if_left(state)]

    def on_failed(self, failed: Failed) -> list[Instruction]:
        """Fail a key in its epoch: tell the clients that registered it here."""
        state = self._state(failed.key, failed.epoch)
        if state.failed is not None:
            return []
        state.failed = failed
        return [Send(client, failed) for client in sorted(state.served)]

    def _fail_everywhere(self, failed: Failed) -> list[Instruction]:
        """Fail a key here and at all other devices."""
        num_clients, num_devices = self._placement.num_clients, self._placement.num_devices
        others = [num_clients + device for device in range(num_devices) if device != self._device]
        return [*(Send(endpoint, failed) for endpoint in others), *self.on_failed(failed)]

    def excuse(self, client: int, round_: int) -> list[Instruction]:
        """Excuse a client that has joined: from now on it counts as zero.

        Rounds that are over are ignored.
        """
        if round_ < self._round:
            return []
        self.begin_round(round_)
        self._excused.add(client)
        return [step for state in self.keys.values() for step in self._settle(state)]

    def on_leave(self, client: int) -> list[Instruction]:
        """Note that a client has shut down: all shards that it has not pushed will never come."""
        self._left.add(client)
        return [step for state in self.keys.values() for step in self._fail_if_left(state)]

    def on_deregister(self, client: int, key: int) -> None:
        """Note that a client will not use a key again; see [Note: deregistration]."""
        self._deregistered[key].add(client)
        for state in self._states_of(key):
            if state.located:
                self._old_keys[state.name].add(key)

    def deregister(self, key: int) -> None:
        """Drop a key that all clients have deregistered; see [Note: deregistration]."""
        self._deregistered.pop(key, None)
        for state in self._states_of(key):
            if state.located:
                self._drop_old_key(state.name, key)
            state.is_deregistered = True
            self._drop_if_over(state)
        self.versions.deregister(key)

    def _drop_old_key(self, name: str, key: int) -> None:
        keys = self._old_keys.get(name)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._old_keys[name]

    def _drop_if_over(self, state: KeyState) -> None:
        if state.is_deregistered and not state.outstanding:
            self._drop(state)

    def begin_round(self, round_: int) -> None:
        """Begin a round: all clients have joined and go on, and none is excused any more.

        A record of a later round begins it too: it may overtake the word that all have joined.
        """
        if round_ > self._round:
            self._round = round_
            self._excused.clear()

    def missing(self, key: int) -> tuple[int, ...]:
        """Return the clients whose registration or contribution a key waits for at this device."""
        state = max(self._states_of(key), key=lambda state: state.epoch, default=KeyState(key, 0))
        return state.missing(self._placement.num_clients, self._excused)

    # --- arrivals

    def on_push(self, push: Push) -> list[Instruction]:
        """Process a client's announcement of shards."""
        self.begin_round(push.round)
        state = self._state(push.key, push.epoch)
        if state.plan is None or push.client not in state.located:
            state.early.append(push)
            return []
        return self._enqueue(state, push) + self._advance(state) + self._fail_if_left(state)

    def on_reduced(self, reduce: Reduce) -> list[Instruction]:
        """Report the result of a Reduce, which is in its targets."""
        state = self.keys[reduce.key, reduce.epoch]
        state.outstanding -= 1
        return self._report(state)

    def give_up(self, key: int, epoch: int) -> None:
        """Note that a sum of a key that has failed was not taken."""
        state = self.keys[key, epoch]
        state.outstanding -= 1
        self._drop_if_over(state)

    def on_ring_reduced(self, ring: RingId) -> list[Instruction]:
        """Go on with a ring whose local part is there."""
        state = self.keys[ring.key, ring.epoch]
        present = bool(state.ring_runs[ring].present)
        run = state.rings[ring]
        steps = run.on_reduced(self._round, present=present)
        return steps + self._finish_ring(state, ring) if run.is_finished else steps

    def on_chunk(self, chunk: RingChunk) -> list[Instruction]:
        """Process a chunk of a ring, perhaps the first that this proxy hears of the shard."""
        self.begin_round(chunk.round)
        state = self._state(chunk.key, chunk.epoch)
        if state.plan is None:
            state.early_chunks.append(chunk)
            return []
        return self._take_chunk(state, chunk) + self._fail_if_left(state)

    def num_members(self, chunk: RingChunk) -> int:
        """Return the number of devices of the ring that a chunk goes round.

        It is that of all nodes if the plan is still to be made.
        """
        state = self.keys.get((chunk.key, chunk.epoch))
        if state is None or state.plan is None:
            return self._placement.num_devices
        return len(state.plan.members(chunk.shard))

    # --- within

    def _state(self, key: int, epoch: int) -> KeyState:
        state = self.keys.get((key, epoch))
        if state is None:
            state = self.keys[key, epoch] = KeyState(key, epoch)
            self._epochs[key].append(epoch)
        return state

    def _drop(self, state: KeyState) -> None:
        del self.keys[state.key, state.epoch]
        epochs = self._epochs[state.key]
        epochs.remove(state.epoch)
        if not epochs:
            del self._epochs[state.key]

    def _states_of(self, key: int) -> list[KeyState]:
        """Return a key's states, of its last epochs."""
        return [self.keys[key, epoch] for epoch in self._epochs.get(key, ())]

    def _settle(self, state: KeyState) -> list[Instruction]:
        """Make the plan once all clients that are not excused have registered; take what came early."""
        steps: list[Instruction] = []
        if state.plan is None:
            facts = self._facts.get(state.epoch)
            known = state.located.keys() | self._excused
            if facts is None or not state.located or len(known) < self._placement.num_clients:
                return []
            if state.failed is not None:
                return []
            if text := state.misplanned(facts, self._placement, self._device):
                return self._fail_everywhere(Failed(state.key, state.epoch, "MismatchError", text))
            for chunk in state.settle(facts, self._placement, self._device):
                steps += self._take_chunk(state, chunk)
        for push in state.take_early():
            steps += self._enqueue(state, push)
        return steps + self._advance(state)

    def _enqueue(self, state: KeyState, push: Push) -> list[Instruction]:
        assert state.queues is not None
        if state.queues.on_push(push.client, push.first, push.last, present=push.present):
            return []
        text = f"rank {push.client} pushed {state.descriptor.name!r} again before its result came"
        return [Send(push.client, Failed(push.key, push.epoch, "InFlightError", text))]

    def _advance(self, state: KeyState) -> list[Instruction]:
        if state.queues is None or state.plan is None or state.failed is not None:
            return []
        steps: list[Instruction] = []
        for run in state.queues.take_ready(self._excused):
            for first, last, alone in state.blocks:
                begin, end = max(first, run.first), min(last, run.last)
                if begin < end:
                    part = ReadyRun(begin, end, run.present, run.recipients)
                    steps += self._reduces(state, part) if alone else self._rings(state, part)
        return steps + self._start_passive(state) if state.rings else steps

    def _fail_if_left(self, state: KeyState) -> list[Instruction]:
        """Fail a key everywhere if it waits for a client that has shut down or uses its name for another key.

        Only a device that the client itself would have told does so: the news of the client cannot reach it before
        the client's last registration and push.
        """
        if not (self._left or state.replaced_by) or state.failed is not None:
            return []
        replaced_by = state.replaced_by if state.has_pushes else set()
        for client in sorted((self._left | replaced_by) - self._excused):
            if state.waits_for(client, self._device, self._facts.get(state.epoch), self._placement):
                rank = self._placement.ranks[client]
                failed = state.left_by(client, rank) if client in self._left else state.deserted_by(client, rank)
                first, num_devices = self._placement.num_clients, self._placement.num_devices
                others = [first + d for d in range(num_devices) if d != self._device]
                return [*(Send(other, failed) for other in others), *self.on_failed(failed)]
        return []

    def _start_passive(self, state: KeyState) -> list[Instruction]:
        """Start each ring that others have begun if this proxy's own clients contribute nothing."""
        assert state.plan is not None
        if not self._excused.issuperset(state.plan.contributors_by_device[self._device]):
            return []
        waiting = [ring for ring, run in state.rings.items() if not run.started]
        return [
            self._start_ring(state, ring, ReadyRun(ring.shard, ring.shard + 1, (), ()))
            for ring in waiting
        ]

    def _reduces(self, state: KeyState, run: ReadyRun) -> list[Instruction]:
        """Return the whole sum in one pass over the bytes, in pieces of at most FOLD_BYTES."""
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
                Reduce(
                    state.key, state.epoch, first, last, descriptor.dtype, descriptor.op,
                    state.divisor, end - begin, sources, targets, descriptor.priority,
                )
            )  # fmt: skip
            state.finished.append((first, last, run))
            state.outstanding += 1
        return steps

    def _rings(self, state: KeyState, run: ReadyRun) -> list[Instruction]:
        steps: list[Instruction] = []
        for shard in range(run.first, run.last):
            ring = RingId(state.key, state.epoch, state.rings_started.get(shard, 0), shard)
            steps.append(self._start_ring(state, ring, run._replace(first=shard, last=shard + 1)))
        return steps

    def _start_ring(self, state: KeyState, ring: RingId, run: ReadyRun) -> RingReduce:
        self._ring_run(state, ring).started = True
        state.ring_runs[ring] = run
        state.rings_started[ring.shard] = max(ring.version + 1, state.rings_started.get(ring.shard, 0))
        state.outstanding += 1
        descriptor = state.descriptor
        assert state.plan is not None
        begin, end = state.plan.bounds(ring.shard, ring.shard + 1)
        sources = state.regions(run.present, begin)
        return RingReduce(
            ring, descriptor.dtype, descriptor.op, end - begin, sources, descriptor.priority
        )

    def _ring_run(self, state: KeyState, ring: RingId) -> RingRun | StarRun:
        run = state.rings.get(ring)
        if run is None:
            run = state.rings[ring] = state.new_ring_run(ring, self._device)
        return run

    def _take_chunk(self, state: KeyState, chunk: RingChunk) -> list[Instruction]:
        key, epoch, _, version, shard, step, present = chunk
        run = self._ring_run(state, ring := RingId(key, epoch, version, shard))
        steps = [] if run.started else self._start_passive(state)
        steps += run.on_chunk(step, present=present)
        return steps + self._finish_ring(state, ring) if run.is_finished else steps

    def _finish_ring(self, state: KeyState, ring: RingId) -> list[Instruction]:
        """Finish a ring whose LocalBuf holds the whole result."""
        assert state.plan is not None
        ring_run = state.rings.pop(ring)
        run = state.ring_runs.pop(ring)
        begin, _ = state.plan.bounds(ring.shard, ring.shard + 1)
        state.outstanding -= 1
        arrived = run._replace(present=run.recipients if ring_run.present else ())
        state.finished.append((ring.shard, ring.shard + 1, arrived))
        targets = state.regions(run.recipients, begin)
        self._drop_if_over(state)
        return [RingFinish(ring, state.divisor, ring_run.present, targets), *self._tell(state)]

    def _report(self, state: KeyState) -> list[Instruction]:
        """Tell the clients once no reduction of the key is under way: one record for many shards."""
        return [] if state.outstanding else self._tell(state)

    def _tell(self, state: KeyState) -> list[Instruction]:
        """Tell the clients which shards are finished.

        A ring's shard is told at once, so that it is read while others go round.
        """
        finished, state.finished = state.finished, []
        state.num_stored += sum(last - first for first, last, _ in finished)
        if finished and state.num_stored == state.num_owned:
            state.num_stored = 0
            self.versions.on_result(state.key)
        return [
            Send(client, Ready(state.key, first, last, present))
            for first, last, recipients, present in merged_results(finished)
            for client in recipients
        ]
