"""Resumable: a training script whose state outlives its processes, so that a job that is started again has the same
bits.

    state = ct.Resumable(model=model, optimizer=optimizer, scheduler=scheduler)     # last before the loop
    for epoch in state.epochs(10):
        for batch in state.batches(loader):
            ...
            optimizer.step()
            state.commit()

[Note: what all have alike] Parameters that a DistributedOptimizer of all workers steps (or that torch's DDP holds), and
the states of optimizers that step them, are kept once on each node: of their bytes, put end to end, each worker of a
node stores a part. That they are alike is compared by checksums at the first commit and each hundredth. All else each
worker stores.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import numpy as np
import torch

from coarse.errors import CheckpointError, ConfigError, MismatchError, StorageError
from coarse.faults.memory import StateMemory, state_memory
from coarse.faults.repeatable import require_repeatable
from coarse.faults.torch.parts import Item, Part, Taken, ValuesPart, items_of, packed, part_of, shared_by_all
from coarse.faults.torch.passes import Passes
from coarse.faults.torch.progress import Progress
from coarse.parallel.data.roll_call import RollCall
from coarse.protocol.commits import Choice, choose
from coarse.session import current
from coarse.storage.state_file import BLOCK_BYTES, BlockSums, StoredVersion
from coarse.torch.groups.objects import Plain, allgather_object, blank, unpack
from coarse.torch.tensors import bytes_of, on_host

_Batch = TypeVar("_Batch")
_ALIGN_BYTES: Final = 64
_COMPARED_EACH: Final = 100
_RECORDED: Final = "coarse/faults/recorded"
_POSITION, _VALUES = "coarse.position", "coarse.values"
Ranges = list[tuple[int, int, int, int]]
"""Of a slot's data: (number of the tensor, first byte within it, bytes, place in the data)."""


class Resumable:
    """See the module. All workers make one, last before the training loop, with the same names.

    Where the job is started again over what was committed, parts have those values once this returns, and the loops go
    on behind the batch of that commit. Generators of torch, CUDA, numpy and random are taken unasked. Gradients are not
    kept.

    Args:
        every: commit at each k-th call of `commit`; how often changes no bits.
        other_kernels: go on although torch, its threads or the processor are others than those of the commit, so that
            bits may differ.
        parts: by names of your choice modules, optimizers, generators of torch and numpy, and what has `state_dict()`
            and `load_state_dict()`.

    Raises:
        TypeError: a part of which nothing can be kept.
        CheckpointError: what was committed is of another model, with the first difference (on the workers that differ).
        StorageError: no version is whole with all workers.
        ConfigError: settings by which two runs differ in bits; an optimizer of some workers.
    """

    def __init__(self, *, every: int = 1, other_kernels: bool = False, **parts: object) -> None:
        runtime = current()
        if every < 1:
            raise ConfigError(f"Resumable: every must be at least 1, got {every}")
        assert runtime.client_index is not None
        self._worker, self._num_workers = runtime.client_index, runtime.placement.num_clients
        self._every, self._other_kernels = every, other_kernels
        self.values: dict[str, Any] = {}
        """Plain values, tensors and arrays of the script's own, which are committed too."""
        alike, shared = shared_by_all(parts, self._num_workers)
        self._parts: dict[str, Part] = {name: part_of(name, what, alike, shared) for name, what in parts.items()}
        self._parts[_VALUES] = ValuesPart("values", self.values)
        self._passes = Passes(self._tell if self._worker == 0 else _say_nothing)
        self._has_stepped = True
        optimizers = [what for what in parts.values() if isinstance(what, torch.optim.Optimizer)]
        self._counts_steps = bool(optimizers)
        for optimizer in optimizers:
            optimizer.register_step_post_hook(self._note_step)
        self._calls = self._version = 0
        self._redone: tuple[int, StoredVersion] | None = None
        """A newer version than that gone on from, which this worker had recorded: it is made again, and compared."""
        self._has_told = False
        self._progress = Progress(self._tell if self._worker == 0 else _say_nothing)
        self._memory: StateMemory | None = state_memory(runtime.config, os.environ, self._worker, self._num_workers)
        if self._memory is None:
            return
        placement = runtime.placement
        require_repeatable(runtime.config, runtime.strategy, self._num_workers, len(set(placement.device_nodes)))
        self._passes.is_kept = True
        nodes = placement.client_nodes
        self._local = [each for each, node in enumerate(nodes) if node == nodes[self._worker]]
        self._roll = RollCall(runtime, _RECORDED)
        runtime.require_client().before_leaving.append(self._roll.close)
        self._go_on(self._memory)

    # --- loops

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yield the numbers of epochs; those that ended before the commit are left out."""
        return self._passes.epochs(num_epochs)

    def batches(self, loader: Iterable[_Batch]) -> Iterator[_Batch]:
        """Yield a loader's batches; those before the commit are left out.

        A loader that has `state_dict()` says itself where it was. Batches of torch's DataLoader without workers, over a
        dataset of indices, are passed over and not read; others are read and dropped.

        Raises:
            ConfigError: a pass within a pass; persistent_workers without `state_dict()`.
            CheckpointError: the loader has fewer batches than were used before the commit.
        """
        return self._passes.batches(loader)

    def steps(self, num_steps: int) -> Iterator[int]:
        """Yield the numbers of steps, from 0; those before the commit are left out."""
        return self._passes.steps(num_steps)

    @property
    def batch(self) -> int | None:
        """Number of the batch at hand within its pass, from 0, also after a restart; None outside of a pass."""
        return self._passes.batch

    # --- commits

    def _note_step(self, *_: object) -> None:
        self._has_stepped = True

    def commit(self) -> bool:
        """Keep the state as it is now, behind an optimizer's step; return whether it was kept.

        It is not where nothing keeps it (rank 0 says so once), amid an accumulation (no optimizer has stepped since the
        last commit), and but for each k-th call of `every=k`. Before version k is written, all workers have recorded
        version k - 1.

        Raises:
            CapacityError: no room, at the first commit.
            TypeError: something that is no plain value, with its name.
            MismatchError: workers commit different steps, or what all should have alike differs, with the tensor.
            StallError: some workers have not committed the version before.
        """
        if self._memory is None:
            if not self._has_told and self._worker == 0:
                self._tell("nothing keeps what commit() stores; start by coarse run --restarts N, or set [faults]")
            self._has_told = True
            return False
        if self._counts_steps and not self._has_stepped:
            return False
        self._has_stepped = False
        self._calls += 1
        if self._calls % self._every:
            return False
        self._require_all_recorded()
        taken = {name: part.take() for name, part in self._parts.items()}
        taken[_POSITION] = packed(self._passes.take(), "the loader's state")
        items = list(items_of(taken))
        if self._version % _COMPARED_EACH == 0:
            self._require_alike(items)
        self._version += 1
        self._write(self._memory, taken, items)
        self._roll.ask(self._calls)
        self._progress.on_commit(self._calls)
        return True

    def _require_all_recorded(self) -> None:
        """Wait until all have recorded the version before; MismatchError where they had made another number of
        steps."""
        if not self._roll.is_open:
            return
        said = self._roll.said()
        self._roll.end()
        if (said != said[0]).any():
            steps = ", ".join(f"worker {worker}: {count}" for worker, count in enumerate(said.tolist()))
            raise MismatchError(
                f"rank {self._worker}: workers committed version {self._version} after different numbers of steps "
                f"({steps}); have all workers commit the same steps"
            )

    def _require_alike(self, items: list[Item]) -> None:
        """MismatchError where what all workers should have alike differs."""
        own = [[item.name, zlib.crc32(_bytes(item.tensor).data)] for item in items if item.is_alike]
        all_sums = allgather_object(own, "coarse/faults/alike") if own else []
        for worker, other in enumerate(all_sums):
            for (name, mine), (_, theirs) in zip(own, other, strict=False):
                if mine != theirs:
                    raise MismatchError(
                        f"rank {self._worker}: {name} differs between this worker and worker {worker}, and all workers "
                        "should have it alike after a step; broadcast parameters before the first step "
                        "(ct.broadcast_parameters, ct.broadcast_optimizer_state)"
                    )

    def _write(self, memory: StateMemory, taken: dict[str, Taken], items: list[Item]) -> None:
        ranges, data_bytes = _ranges(items, self._local.index(self._worker), len(self._local))
        layout = json.dumps({
            "worker": self._worker, "workers": self._num_workers, "local": self._local, "script": _script(),
            "kernels": _kernels(), "calls": self._calls, "ranges": ranges,
            "names": [item.name for item in items], "alike": [n for n, item in enumerate(items) if item.is_alike],
            "trees": {name: each.tree for name, each in taken.items()},
        }).encode()  # fmt: skip
        if self._version == 1 or self._progress.is_first:
            memory.reserve(data_bytes, len(layout))
        slot = memory.slot(self._version)
        data = slot.begin(data_bytes, len(layout))
        sums = BlockSums(data, slot.checksum)
        for number, first, nbytes, place in ranges:
            _copy(items[number].tensor, first, data[place : place + nbytes], sums, place)
        sums.written_to(data_bytes)
        if self._redone is not None:
            self._compare_redone(layout, sums.sums)
        slot.record(self._version, layout, sums.sums)

    def _compare_redone(self, layout: bytes, sums: np.ndarray) -> None:
        """Warn where a version that was recorded before the restart has other bytes now."""
        assert self._redone is not None
        number, before = self._redone
        if number != self._version:
            return
        self._redone = None
        then, now = json.loads(before.layout), json.loads(layout)
        if then["ranges"] != now["ranges"] or len(before.sums) != len(sums):
            names = ["the shapes of what is kept"]
        else:
            blocks = np.flatnonzero(before.sums != sums).tolist()
            hit = [r for r in now["ranges"] if any(_overlaps(r, block) for block in blocks)]
            names = sorted({now["names"][number] for number, *_ in hit})
        if names:
            self._tell(
                f"worker {self._worker} made step {self._calls} again with other bits ({', '.join(names[:3])}): the "
                "script does not repeat itself"
            )

    # --- going on

    def _go_on(self, memory: StateMemory) -> None:
        """Be as the newest version says that is whole with all workers."""
        seen, whole = memory.found()
        all_seen = allgather_object([list(seen.whole), list(seen.damaged)], "coarse/faults/seen")
        choice = choose([type(seen)(tuple(each), tuple(bad)) for each, bad in all_seen])
        self._tell_passed_over(choice)
        self._version = choice.version
        if choice.version == 0:
            return
        kept = whole[choice.version]
        layout = json.loads(kept.layout)
        self._require_same_job(layout)
        trees, names = layout["trees"], layout["names"]
        if missing := sorted(self._parts.keys() ^ (trees.keys() - {_POSITION})):
            raise CheckpointError(
                f"the states that are kept have the parts {sorted(trees.keys() - {_POSITION, _VALUES})}, and Resumable "
                f"was given {sorted(self._parts.keys() - {_VALUES})} ({missing[0]!r} differs); give the same parts"
            )
        wanted = {name: self._parts[name].wanted(trees[name]) for name in trees if name != _POSITION}
        wanted[_POSITION] = blank(trees[_POSITION])
        tensors = [tensor for name in trees for tensor in wanted[name]]
        if len(tensors) != len(names):
            raise CheckpointError(f"the states that are kept have {len(names)} tensors, {len(tensors)} were expected")
        for worker in self._local:
            stored = kept if worker == self._worker else memory.of_other(worker, choice.version)
            self._read(stored, names, tensors, is_own=worker == self._worker)
        for name, part in self._parts.items():
            part.put(trees[name], wanted[name])
        self._passes.put(unpack(trees[_POSITION], iter(wanted[_POSITION])))
        self._calls = layout["calls"]
        self._redone = (choice.version + 1, whole[choice.version + 1]) if choice.version + 1 in whole else None
        if self._redone is not None:  # its slot is written anew before it is compared
            number, before = self._redone
            self._redone = number, before._replace(sums=before.sums.copy(), data=before.data[:0])
        self._progress.on_restored(self._calls)

    def _read(self, stored: StoredVersion, names: list[str], tensors: list[torch.Tensor], *, is_own: bool) -> None:
        """Fill tensors with what one worker's version has of them."""
        layout = json.loads(stored.layout)
        places = {name: place for place, name in enumerate(names)}
        alike = set(layout["alike"])
        for number, first, nbytes, place in layout["ranges"]:
            if not is_own and number not in alike:
                continue
            target = bytes_of(tensors[places[layout["names"][number]]])
            target[first : first + nbytes] = stored.data[place : place + nbytes]

    def _tell_passed_over(self, choice: Choice) -> None:
        if self._worker == 0:
            for worker, version in choice.passed_over:
                kept = f"version {choice.version} is gone on from"
                self._tell(f"version {version} of the states is damaged with worker {worker}; {kept}")

    def _require_same_job(self, layout: dict[str, Plain]) -> None:
        """StorageError where what is kept is another job's; ConfigError where it was made by other kernels."""
        for what, own in (("workers", self._num_workers), ("script", _script()), ("worker", self._worker)):
            if layout[what] != own:
                raise StorageError(
                    f"the states that are kept are of another job: its {what} is {layout[what]!r}, and this one's is "
                    f"{own!r}; go on with that, or name an empty folder in [faults] memory"
                )
        if layout["kernels"] != _kernels() and not self._other_kernels:
            raise ConfigError(
                f"the states that are kept were made by {layout['kernels']}, and here are {_kernels()}, whose sums may "
                "have other bits; go on with those, or say Resumable(other_kernels=True)"
            )

    def _tell(self, text: str) -> None:
        sys.stderr.write(f"coarse: {text}\n")
        sys.stderr.flush()


def _say_nothing(_: str) -> None:
    """Of all workers one speaks."""


def _script() -> str:
    return os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else ""


def _kernels() -> str:
    """What bits depend on beside the script."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__} with {torch.get_num_threads()} threads and {capability}"


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    return bytes_of(on_host(tensor).contiguous())


def _ranges(items: list[Item], place: int, count: int) -> tuple[Ranges, int]:
    """Return what a worker stores, the `place`-th of `count` on its node, and how many bytes that are."""
    total = sum(item.tensor.nbytes for item in items if item.is_alike)
    begin, end = total * place // count, total * (place + 1) // count
    ranges: Ranges = []
    at = within = 0
    for number, item in enumerate(items):
        nbytes = item.tensor.nbytes
        first, last = 0, nbytes
        if item.is_alike:
            first, last = max(begin - within, 0), min(end - within, nbytes)
            within += nbytes
        if first < last:
            ranges.append((number, first, last - first, at))
            at += -(-(last - first) // _ALIGN_BYTES) * _ALIGN_BYTES
    return ranges, at


def _copy(tensor: torch.Tensor, first: int, target: np.ndarray, sums: BlockSums, place: int) -> None:
    """Copy a range of a tensor's bytes to a place of the data, a MiB at a time with its checksum."""
    source = _bytes(tensor)[first : first + len(target)]
    for begin in range(0, len(target), BLOCK_BYTES):
        end = min(begin + BLOCK_BYTES, len(target))
        target[begin:end] = source[begin:end]
        sums.written_to(place + end)


def _overlaps(stored: list[int], block: int) -> bool:
    _, _, nbytes, place = stored
    return place < (block + 1) * BLOCK_BYTES and place + nbytes > block * BLOCK_BYTES
