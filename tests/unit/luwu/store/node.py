"""An optimizer node in a loop: workers that run a script, and instructions carried out in an order that is drawn."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from coarse.luwu.store.commit import Commit, UnitVersion
from coarse.luwu.store.fixed_point import add_in_order
from coarse.luwu.store.folder import Disk, PagedFolder, aligned
from coarse.luwu.store.image import Image, Stamp
from coarse.luwu.store.instructions import (
    AddSum,
    Assign,
    ClearImage,
    Consumed,
    DropSums,
    Look,
    Offer,
    Prepared,
    ReadImage,
    ReadPulled,
    ReadSum,
    SquareSum,
    Sync,
    TellNorm,
    Update,
    WriteImage,
    WriteSum,
)
from coarse.luwu.store.kernels import kernel_of
from coarse.luwu.store.layout import DiskLayout, PagedModel
from coarse.luwu.store.operations import (
    GRADIENTS,
    AskNorm,
    CommitNow,
    Discard,
    EndPass,
    Freeze,
    Operation,
    OperationLog,
    Pull,
    Push,
    Step,
)
from coarse.luwu.store.optimizer import PagedOptimizer, Rules
from coarse.luwu.store.store import Buffers, PagedStore
from coarse.storage.checksums import checksum_named

FOLDERS = (Path("/disk/a"), Path("/disk/b"))


@dataclass
class Act:
    """One thing that a worker does: an operation, with the values that go with it."""

    operation: Operation
    values: np.ndarray | None = None  # (n,) float32 of the unit; None: nothing
    present: int = 0


@dataclass
class Worker:
    acts: list[Act]
    at: int = 0
    pulling: int | None = None
    """The unit that it is getting."""
    got: list[np.ndarray] = field(default_factory=list)
    pulled: list[tuple[int, np.ndarray]] = field(default_factory=list)
    """Unit and its pulled values, for each pull that is complete."""
    num_taken: int = 0
    norms_seen: int = 0


class Node:
    """One optimizer node, W workers, all on one machine."""

    def __init__(
        self,
        model: PagedModel,
        rules: Rules,
        scripts: list[list[Act]],
        disk: Disk,
        *,
        seed: int = 0,
        optimizer: str = "AdamW",
        in_memory: tuple[int, ...] = (),
        num_buffers: int = 3,
        num_window: int = 4,
        groups: list[list[int]] | None = None,
    ) -> None:
        self.model = model
        self.rng = random.Random(seed)
        self.workers = [Worker(script) for script in scripts]
        self.layout = DiskLayout(model, 0, len(FOLDERS))
        self.folders = [PagedFolder(path, disk) for path in FOLDERS]
        for place, folder in enumerate(self.folders):
            folder.open_files(self.layout.file_bytes[place], self.layout.sum_file_bytes[place])
        self.resumed = next(iter(self.folders[0].commits()), None)
        pull_nbytes = max(model.image(unit, 0).pull_nbytes for unit in range(len(model.units)))
        self.window = aligned(num_window * pull_nbytes).reshape(num_window, pull_nbytes)
        buffers = Buffers(model, num_buffers)
        self.store = PagedStore(
            self.layout, self.folders, buffers, self.window, in_memory, checksum_named("crc32"),
            lambda group: kernel_of(optimizer, group), groups or [[0] * len(unit.tensors) for unit in model.units],
        )  # fmt: skip
        self.optimizer = PagedOptimizer(
            model, 0, rules, num_buffers=num_buffers, num_window=num_window, in_memory=in_memory, resumed=self.resumed
        )
        self.log = OperationLog(len(scripts))
        self.pushes: list[list[tuple[np.ndarray | None]]] = []
        self.push_of: dict[int, int] = {}
        self.offered: dict[int, tuple[int, int]] = {}
        self.unit_of: list[int] = []
        self.whole: list[int] = []
        """Pushes that all workers have asked for."""
        self.delivering: tuple[int, int] | None = None
        self.num_delivered = 0
        self.pending: list[Callable[[], list[object]]] = []
        self.norms: list[float] = []
        self.commits: list[Commit] = []
        self.consumed: set[tuple[int, int]] = set()
        self.sequence = 0 if self.resumed is None else self.resumed.sequence + 1
        self.dropped = 0
        self.looked: dict[int, np.ndarray] = {}

    # --- the loop

    def run(self, most: int | None = None) -> bool:
        """Go on until nothing is left to do, or for so many turns; whether all is done."""
        turns = 0
        while True:
            ready = [worker for worker in range(len(self.workers)) if self.can_act(worker)]
            choices = [*ready, *range(len(self.workers), len(self.workers) + len(self.pending))]
            if not choices:
                return all(w.at == len(w.acts) and w.pulling is None for w in self.workers)
            if most is not None and turns >= most:
                return False
            turns += 1
            choice = self.rng.choice(choices)
            if choice < len(self.workers):
                self.act(choice)
            else:
                # instructions that end, in any order
                job = self.pending.pop(choice - len(self.workers))
                self.carry_out(job())

    def can_act(self, number: int) -> bool:
        worker = self.workers[number]
        if worker.pulling is not None:
            return worker.num_taken in self.offered
        if worker.at == len(worker.acts):
            return False
        waits_for_norm = sum(isinstance(act.operation, AskNorm) for act in worker.acts[: worker.at])
        return len(self.norms) >= waits_for_norm

    def act(self, number: int) -> None:
        worker = self.workers[number]
        if worker.pulling is not None:
            self.take(worker)
            return
        act = worker.acts[worker.at]
        worker.at += 1
        operation = act.operation(self) if callable(act.operation) else act.operation
        asked, is_first = self.log.on_asked(number, operation, act.present)
        if isinstance(operation, Push):
            if is_first:
                self.push_of[asked.number] = len(self.pushes)
                self.pushes.append([None] * len(self.workers))
                self.unit_of.append(operation.unit)
            self.pushes[self.push_of[asked.number]][number] = (act.values,)
        if isinstance(operation, Pull):
            worker.pulling = operation.unit
        done = self.optimizer.on_asked(asked, is_first=is_first)
        self.carry_out(done)
        if isinstance(operation, Push) and asked.is_complete:
            push = self.push_of[asked.number]
            self.whole.append(push)
            self.pending.append(self.deliver)

    def deliver(self) -> list[object]:
        """The next chunk of the oldest push is there on all workers."""
        if self.delivering is None:
            if self.num_delivered not in self.whole:
                return []
            self.delivering = self.num_delivered, 0
        push, chunk = self.delivering
        num_chunks = self.model.num_chunks(self.unit_of[push])
        self.delivering = (push, chunk + 1) if chunk + 1 < num_chunks else None
        self.num_delivered += self.delivering is None
        self.pending.append(self.deliver)
        return self.optimizer.on_full(push, chunk)

    def take(self, worker: Worker) -> None:
        unit, chunk = self.offered[worker.num_taken]
        assert unit == worker.pulling
        layout = self.model.image(unit, chunk)
        image = Image(layout, self.window[worker.num_taken % len(self.window)])
        worker.got.append(image.pulled.copy())
        worker.num_taken += 1
        if len(worker.got) == self.model.num_chunks(unit):
            worker.pulled.append((unit, np.concatenate(worker.got)))
            worker.got, worker.pulling = [], None
        least = min(one.num_taken for one in self.workers)
        for number in [number for number in self.offered if number < least]:
            del self.offered[number]
        self.carry_out(self.optimizer.on_freed(least))

    # --- instructions

    def carry_out(self, wanted: list[object]) -> None:
        for one in wanted:
            match one:
                case Offer(number, unit, chunk):
                    self.offered[number] = unit, chunk
                case Consumed(push, chunk):
                    assert (push, chunk) not in self.consumed
                    self.consumed.add((push, chunk))
                case DropSums():
                    self.dropped += 1
                case TellNorm(square):
                    self.norms.append(square)
                case Prepared(step):
                    self.pending.append(lambda step=step: self.write_record(step))
                case Look():
                    self.pending.append(lambda one=one: self.look(one))
                case _:
                    self.pending.append(lambda one=one: self.do(one))

    def look(self, one: Look) -> list[object]:
        begin, end = self.model.elements(one.unit, one.chunk)
        into = np.empty(end - begin, np.float32)
        self.store.look(one, into)
        self.looked[one.token] = into
        return []

    def do(self, one: object) -> list[object]:
        store = self.store
        match one:
            case ReadPulled():
                store.read_pulled(one)
            case ReadImage():
                store.read_image(one)
            case ClearImage():
                store.clear_image(one)
            case ReadSum():
                store.read_sum(one)
            case WriteSum():
                store.write_sum(one)
            case Update():
                store.update(one)
            case Assign():
                store.assign(one)
            case WriteImage():
                store.write_image(one)
            case Sync():
                for folder in self.folders:
                    folder.sync()
            case SquareSum():
                return self.optimizer.on_squared(one, store.square_sum(one))
            case AddSum():
                begin, end = self.model.elements(one.unit, one.chunk)
                values = [given[0][begin:end] for given in self.pushes[one.push] if given[0] is not None]
                return self.optimizer.on_added(one, store.add_sum(one, values, add_in_order))
        return self.optimizer.on_done(one)

    def write_record(self, step: int) -> list[object]:
        versions = self.optimizer.versions()
        units = tuple(versions[unit] for unit in range(len(self.model.units)))
        states = tuple((b"%d" % step).ljust(3000) for _ in self.workers)
        commit = Commit(sequence=self.sequence, run="run", step=step, units=units, workers=states)
        self.folders[0].write_commit(commit)
        self.sequence += 1
        self.commits.append(commit)
        return self.optimizer.on_committed()

    # --- reading

    def arrays(self, unit: int, version: UnitVersion) -> list[np.ndarray]:
        """Master copy and states of a unit, from the disk."""
        found: list[list[np.ndarray]] = []
        for chunk in range(self.model.num_chunks(unit)):
            layout = self.model.image(unit, chunk)
            place = self.layout.place(unit, chunk, version.slot)
            raw = aligned(layout.nbytes)
            self.folders[place.folder].read("slots", raw, place.offset)
            image = Image(layout, raw)
            image.check(Stamp(unit, chunk, version.version), checksum_named("crc32"), "there", pulled=True, states=True)
            found.append([image.master, *image.states])
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]


# --- scripts and what they should give


@dataclass
class Training:
    """What workers do, step by step, and the reference of it."""

    model: PagedModel
    num_workers: int
    num_steps: int
    num_passes: int = 1
    settings: tuple[dict[str, object], ...] = ({"lr": 0.1, "weight_decay": 0.01},)
    optimizer: str = "AdamW"
    max_norm: float | None = None
    seed: int = 0
    in_backward: bool = False
    absent: Callable[[int, int, int, int], bool] = lambda worker, step, unit, tensor: False
    discards: tuple[int, ...] = ()
    """Steps whose gradients are thrown away once, and pushed anew."""
    first_step: int = 0
    groups: list[list[int]] | None = None
    unused: Callable[[int, int], bool] = lambda step, unit: False
    """Units that a step's backward does not reach."""

    def first_values(self, unit: int) -> np.ndarray:
        of = self.model.units[unit]
        drawn = np.random.default_rng([self.seed, unit]).normal(size=of.num_elements).astype(np.float32)
        values = np.zeros_like(drawn)  # between tensors there is nothing
        for tensor, begin in zip(of.tensors, of.begins, strict=True):
            values[begin : begin + tensor.num_elements] = drawn[begin : begin + tensor.num_elements]
        return values

    def gradient(self, worker: int, step: int, number: int, unit: int) -> tuple[np.ndarray | None, int]:
        rng = np.random.default_rng([self.seed, 1, worker, step, number, unit])
        of = self.model.units[unit]
        values = (rng.normal(size=of.num_elements) * 10.0 ** rng.uniform(-3, 1)).astype(np.float32)
        present = 0
        kept = np.zeros_like(values)
        for place, (tensor, begin) in enumerate(zip(of.tensors, of.begins, strict=True)):
            if tensor.is_trainable and not self.absent(worker, step, unit, place):
                present |= 1 << place
                kept[begin : begin + tensor.num_elements] = values[begin : begin + tensor.num_elements]
        return (kept if present else None), present

    def scripts(self) -> list[list[Act]]:
        return [self.script(worker) for worker in range(self.num_workers)]

    def script(self, worker: int) -> list[Act]:
        acts: list[Act] = []
        units = range(len(self.model.units))
        if not self.first_step:
            for unit in units:
                everything = (1 << len(self.model.units[unit].tensors)) - 1
                values = self.first_values(unit) if worker == 0 else None
                acts.append(Act(Push(unit, 0, False), values, everything if worker == 0 else 0))
            acts.append(Act(CommitNow(0)))
        for step in range(self.first_step + 1, self.num_steps + 1):
            if step in self.discards:
                acts += self.passes(worker, step + 1000)
                acts.append(Act(Discard()))
            acts += self.passes(worker, step)
            acts.append(self.step_act(step))
        return acts

    def passes(self, worker: int, step: int) -> list[Act]:
        acts: list[Act] = []
        units = range(len(self.model.units))
        for number in range(self.num_passes):
            acts += [Act(Pull(unit)) for unit in units]
            if self.in_backward and number == self.num_passes - 1:
                acts.append(Act(Freeze(json.dumps(self.settings), self.num_workers)))
            for unit in reversed(units):
                if self.unused(step, unit):
                    continue
                acts.append(Act(Pull(unit)))
                if self.model.units[unit].is_trainable:
                    values, present = self.gradient(worker, step, number, unit)
                    acts.append(Act(Push(unit, GRADIENTS, True), values, present))
            acts.append(Act(EndPass()))
        if self.max_norm is not None:
            acts.append(Act(AskNorm()))
        return acts

    def step_act(self, step: int) -> Act:
        def operation(node: Node) -> Operation:
            coefficient = 1.0
            if self.max_norm is not None:
                norm = node.norms[step - self.first_step - 1] ** 0.5 / self.num_workers
                coefficient = min(1.0, self.max_norm / (norm + 1e-6))
            return Step(step, json.dumps(self.settings), coefficient, self.num_workers)

        return Act(operation)  # type: ignore[arg-type]

    def reference(self, upto: int | None = None) -> dict[int, list[np.ndarray]]:
        """By unit, the parameters and states after so many steps, computed in one place, unit by unit and whole."""
        model = self.model
        kernels = [kernel_of(self.optimizer, group) for group in self.settings]
        found = {}
        steps = {}
        for unit, of in enumerate(model.units):
            num_states = model.num_states if of.is_trainable else 0
            found[unit] = [self.first_values(unit), *(np.zeros(of.num_elements, np.float32) for _ in range(num_states))]
            steps[unit] = [0] * len(of.tensors)
        for step in range(1, (self.num_steps if upto is None else upto) + 1):
            sums, presents = {}, {}
            for unit, of in enumerate(model.units):
                if not of.is_trainable or self.unused(step, unit):
                    continue
                total, present = None, 0
                for number in range(self.num_passes):
                    given = [self.gradient(worker, step, number, unit) for worker in range(self.num_workers)]
                    of_pass = None
                    for values, has in given:
                        present |= has
                        if values is not None:
                            of_pass = values.copy() if of_pass is None else of_pass + values
                    if of_pass is not None:
                        total = of_pass if total is None else total + of_pass
                if total is not None:
                    sums[unit], presents[unit] = total, present
            coefficient = np.float32(1.0)
            if self.max_norm is not None:
                square = sum(float(np.sum(total.astype(np.float64) ** 2)) for total in sums.values())
                coefficient = np.float32(min(1.0, self.max_norm / (square**0.5 / self.num_workers + 1e-6)))
            for unit, total in sums.items():
                gradient = total / np.float32(self.num_workers) if self.num_workers > 1 else total
                if coefficient != 1.0:
                    gradient = gradient * coefficient
                of = model.units[unit]
                for place, (tensor, begin) in enumerate(zip(of.tensors, of.begins, strict=True)):
                    if presents[unit] >> place & 1:
                        steps[unit][place] += 1
                        part = slice(begin, begin + tensor.num_elements)
                        group = self.groups[unit][place] if self.groups else 0
                        states = [state[part] for state in found[unit][1:]]
                        kernels[group].step(found[unit][0][part], gradient[part], states, steps[unit][place])
        return found
