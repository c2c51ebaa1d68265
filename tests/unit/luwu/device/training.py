"""A training of workers by their lines, and what should come of it; what happens next is drawn. Who carries records and
bytes is up to others."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from coarse.luwu.client.copying import copy_packets, unit_exponents
from coarse.luwu.client.line import Copy, NodeLine, Pulled
from coarse.luwu.records import (
    PagedBeat,
    PagedCommitted,
    PagedData,
    PagedFailed,
    PagedLooked,
    PagedNorm,
    PagedState,
)
from coarse.luwu.store.declaration import Declaration
from coarse.luwu.store.fixed_point import adder_of
from coarse.luwu.store.kernels import kernel_of
from coarse.luwu.store.operations import GRADIENTS, CommitNow, EndPass, Operation, Push, Step
from coarse.protocol.dtypes import DType, narrowed, widen

MODEL = 0
MOST_EVENTS = 200_000
PRESENT_SHARE = 0.7
"""Of gradients: workers have none of the others."""
Event = Callable[[], object]
Program = Iterator[Callable[[], bool] | None]
"""What a worker does; it yields what it waits for."""


class Training:
    """`is_born`: whether gradients lie in device memory from the beginning."""

    def __init__(self, declaration: Declaration, seed: int, *, is_born: bool) -> None:
        self.declaration, self.model = declaration, declaration.model
        self.is_born = is_born
        self.rng = random.Random(seed)
        self.workers = range(declaration.num_workers)
        self.add = adder_of(declaration.sum, declaration.num_workers)
        self.lines: list[dict[int, NodeLine]] = [{} for _ in self.workers]
        """By worker and optimizer node's device."""
        self.programs: dict[int, Program] = {}
        self.waits: dict[int, Callable[[], bool] | None] = {}
        self.committed = [-1 for _ in self.workers]
        self.norms: list[list[float]] = [[] for _ in self.workers]
        self.looked: list[dict[int, tuple[int, ...]]] = [{} for _ in self.workers]
        self.num_events = 0
        self._known: dict[int, list[list[np.ndarray]]] = {}
        """By unit and number of steps: parameters and states as they should be."""

    # --- what others have to say

    def tell(self, worker: int, record: object) -> None:
        """Bring a worker's record to its device."""
        raise NotImplementedError

    def view(self, line: NodeLine, offset: int, nbytes: int) -> np.ndarray:
        """(nbytes,) uint8 of the memory of a line's device."""
        raise NotImplementedError

    def events(self) -> list[Event]:
        """What may happen next beside what workers do."""
        raise NotImplementedError

    def wake(self) -> bool:
        """Nothing can happen: whether time goes on until something can."""
        return False

    # --- events

    def run(self, programs: list[Program]) -> None:
        """Run each worker's program to its end, and all that follows of it."""
        self.programs, self.waits = dict(enumerate(programs)), dict.fromkeys(self.workers)
        for _ in range(MOST_EVENTS):
            choices: list[Event] = [partial(self.go_on, worker) for worker in self.programs if self.may_go_on(worker)]
            choices += [partial(self.copy, line) for lines in self.lines for line in lines.values() if line.copies]
            choices += self.events()
            if choices:
                self.rng.choice(choices)()
                self.post()
                self.num_events += 1
            elif not self.wake():
                assert not self.programs, f"{list(self.programs)} wait for ever"
                return
        raise AssertionError("it goes on for ever")

    def may_go_on(self, worker: int) -> bool:
        wait = self.waits[worker]
        return wait is None or wait()

    def go_on(self, worker: int) -> None:
        try:
            self.waits[worker] = next(self.programs[worker])
        except StopIteration:
            del self.programs[worker]

    def post(self) -> None:
        for worker, lines in enumerate(self.lines):
            for line in lines.values():
                records, line.out = line.out, []
                for record in records:
                    self.tell(worker, record)

    def copy(self, line: NodeLine) -> None:
        copy: Copy = line.copies.popleft()
        copy_packets(line, copy, partial(self.view, line), self.declaration)
        line.on_copied(copy)

    def on_worker(self, worker: int, record: object) -> None:
        match record:
            case PagedData():
                self.lines[worker][record.device].on_data(record)
            case PagedBeat():
                self.lines[worker][record.device].on_beat(record)
            case PagedCommitted():
                self.committed[worker] = record.step
            case PagedNorm():
                self.norms[worker].append(record.square)
            case PagedLooked():
                self.looked[worker][record.token] = record.steps
            case PagedFailed():
                raise AssertionError(record.text)

    # --- what workers do

    def program(self, worker: int, steps: int) -> Program:
        """Values from worker 0, then steps of pulls forward and backward, pushes and a step."""
        model = self.model
        for unit, of in enumerate(model.units):
            values = self.first(unit) if worker == 0 else None
            present = (1 << len(of.tensors)) - 1 if worker == 0 else 0
            self.line(worker, unit).push(Push(unit, 0, False), present, source=values)
        self.ask_all(worker, CommitNow(0))
        self.tell_state(worker, 0)
        forward = range(len(model.units))
        for step in range(1, steps + 1):
            for unit, is_backward in [*((unit, False) for unit in forward), *((unit, True) for unit in forward[::-1])]:
                pulled = self.pull(worker, unit)
                yield lambda pulled=pulled: pulled.is_done
                self.check(step, unit, pulled)
                if is_backward and model.units[unit].is_trainable:
                    yield from self.push(worker, step, unit)
            self.ask_all(worker, EndPass())
            self.ask_all(worker, Step(step, json.dumps(self.declaration.groups), 1.0, self.declaration.num_workers))
            self.tell_state(worker, step)
        yield lambda: self.committed[worker] == steps

    def line(self, worker: int, unit: int) -> NodeLine:
        return self.lines[worker][self.declaration.nodes[self.model.device_of[unit]]]

    def ask_all(self, worker: int, operation: Operation) -> None:
        for line in self.lines[worker].values():
            line.ask(operation)

    def tell_state(self, worker: int, number: int) -> None:
        self.post()
        self.tell(worker, PagedState(worker, self.declaration.nodes[0], MODEL, number, True, ""))

    def pull(self, worker: int, unit: int) -> Pulled:
        nbytes = self.model.units[unit].num_elements * self.model.pulled.itemsize
        return self.line(worker, unit).pull(unit, np.empty(nbytes, np.uint8))

    def push(self, worker: int, step: int, unit: int) -> Program:
        line, dtype, push = self.line(worker, unit), self.declaration.gradients, Push(unit, GRADIENTS, False)
        values = self.gradient(worker, step, unit)
        if values is None:
            line.push(push, 0)
            return
        present = (1 << len(self.model.units[unit].tensors)) - 1
        stored = values if dtype is DType.FLOAT32 else narrowed(values, dtype)
        if self.declaration.is_packed:
            pushed = line.push(push, present, source=stored, is_ready=False)
            yield lambda: True  # others do something meanwhile
            line.supply(pushed, self.exponents(step, unit))
            return
        left_bytes = line.opened["gradient_bytes"] - stored.nbytes
        if not self.is_born or left_bytes < 0:
            line.push(push, present, source=stored)
            return
        offset = line.opened["gradients"] + (self.rng.randrange(2) * 64 if left_bytes >= 64 else 0)
        room = self.view(line, offset, stored.nbytes).view(dtype.storage)
        assert not room.any()  # it was left zeroed
        room += stored
        pushed = line.push(push, present, offset=offset)
        yield lambda: pushed.is_done

    # --- what should come of it

    def first(self, unit: int) -> np.ndarray:
        return self.drawn(unit, 0, 0, 0)

    def gradient(self, worker: int, step: int, unit: int) -> np.ndarray | None:
        """One worker has one in any case."""
        has = (step + unit) % len(self.workers) == worker
        if not has and np.random.default_rng([unit, 2, worker, step]).random() > PRESENT_SHARE:
            return None
        return self.drawn(unit, 1, worker, step)

    def drawn(self, unit: int, *what: int) -> np.ndarray:
        of = self.model.units[unit]
        values = np.zeros(of.num_elements, np.float32)
        rng = np.random.default_rng([unit, *what])
        for tensor, begin in zip(of.tensors, of.begins, strict=True):
            values[begin : begin + tensor.num_elements] = rng.normal(size=tensor.num_elements)
        return values

    def pushed(self, worker: int, step: int, unit: int) -> np.ndarray | None:
        """Its gradients as others have them, in float32."""
        values, dtype = self.gradient(worker, step, unit), self.declaration.gradients
        return values if values is None or dtype is DType.FLOAT32 else widen(narrowed(values, dtype), dtype)

    def exponents(self, step: int, unit: int) -> np.ndarray:
        """What all workers agree on."""
        own = [values for worker in self.workers if (values := self.pushed(worker, step, unit)) is not None]
        wide = replace(self.declaration, gradients=DType.FLOAT32)
        return np.maximum.reduce([unit_exponents(wide, unit, values) for values in own])

    def total(self, step: int, unit: int) -> np.ndarray:
        """The sum of all workers' gradients."""
        parts = [part for worker in self.workers if (part := self.pushed(worker, step, unit)) is not None]
        total = np.empty_like(parts[0])
        for chunk in range(self.model.num_chunks(unit)):
            begin, end = self.model.elements(unit, chunk)
            self.add([part[begin:end] for part in parts], total[begin:end])
        return total

    def reference(self, unit: int, steps: int) -> list[np.ndarray]:
        """Parameters and states after so many steps."""
        kernel = kernel_of(self.declaration.optimizer, self.declaration.groups[0])
        first = self.first(unit)
        known = self._known.setdefault(unit, [[first, *(np.zeros_like(first) for _ in range(kernel.num_states))]])
        if not self.model.units[unit].is_trainable:
            return known[0]
        for step in range(len(known), steps + 1):
            values, *states = (array.copy() for array in known[-1])
            kernel.step(values, self.total(step, unit) / np.float32(len(self.workers)), states, step)
            known.append([values, *states])
        return known[steps]

    def check(self, step: int, unit: int, pulled: Pulled) -> None:
        assert pulled.target is not None
        right = self.reference(unit, step - 1)[0]
        if self.model.pulled is not DType.FLOAT32:
            right = narrowed(right, self.model.pulled)
        assert pulled.target.tobytes() == right.tobytes(), (step, unit)
