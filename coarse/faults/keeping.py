"""Machine behind Resumable: the states that a worker keeps at each commit, and their return.

[Note: what all have alike] Parameters that a DistributedOptimizer of all workers steps (or that torch's DDP holds), and
the states of optimizers that step them, are kept once on each node: of their bytes, put end to end, each worker of a
node stores a part. Their equality is checked by checksums at the first commit and each hundredth. Each worker stores
all else.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from coarse.errors import CheckpointError, ConfigError, MismatchError, StorageError
from coarse.faults.memory import StateMemory
from coarse.faults.parts import OWN, Item, Part, Taken, items_of
from coarse.faults.peers import LivePeers, Peers
from coarse.faults.repeatable import require_repeatable
from coarse.plain import Plain, Tensors
from coarse.protocol.commits import Choice, choose
from coarse.storage.state_file import BLOCK_BYTES, BlockSums, StoredVersion
from coarse.transport.imports import imports

if TYPE_CHECKING:  # it starts MPI, which only init() may
    from coarse.runtime import Runtime

_ALIGN_BYTES: Final = 64
_COMPARED_EACH: Final = 100
Ranges = list[tuple[int, int, int, int]]
"""Entries of a slot's data: (number of the tensor, first byte within it, bytes, place in the data)."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of the worker that keeps its state among all workers."""

    worker: int
    num_workers: int
    local: tuple[int, ...]
    """Workers of its node."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Framework that trains."""

    tensors: Tensors
    kernels: Callable[[], str]
    """Function that returns the name of the kernels, on which bits depend beside the script."""
    remedy: str
    """Advice where workers differ in a state that should be equal on all."""


def keeping_of_job(
    runtime: Runtime,
    parts: dict[str, Part],
    memory: StateMemory,
    gather: Callable[[Plain, str], list[Plain]],
    framework: Framework,
    tell: Callable[[str], None],
    *,
    every: int = 1,
    other_kernels: bool = False,
    is_ddp: bool = False,
) -> Keeping:
    """Return this worker's commits among those of a running job; see Keeping and require_repeatable.

    Raises:
        ConfigError: settings by which two runs differ in bits.
    """
    worker, nodes = runtime.client_index, runtime.placement.client_nodes
    assert worker is not None
    num_device_nodes = len(set(runtime.placement.device_nodes))
    require_repeatable(runtime.config, runtime.strategy, len(nodes), num_device_nodes, is_ddp=is_ddp)
    local = tuple(each for each, node in enumerate(nodes) if node == nodes[worker])
    place = Place(worker=worker, num_workers=len(nodes), local=local)
    peers = LivePeers(runtime, gather)
    return Keeping(parts, memory, peers, place, framework, tell, every=every, other_kernels=other_kernels)


class Keeping:
    """Commits of one worker."""

    def __init__(
        self,
        parts: dict[str, Part],
        memory: StateMemory,
        peers: Peers,
        place: Place,
        framework: Framework,
        tell: Callable[[str], None],
        *,
        every: int = 1,
        other_kernels: bool = False,
    ) -> None:
        """Prepare the commits.

        `parts` are put back in their order. `every` tells at which calls of its commit a script commits; all workers
        must state the same.
        """
        self._parts, self._framework = parts, framework
        self._memory, self._peers, self._place, self._tell = memory, peers, place, tell
        self._statement = [f"every = {every}", *(f"the part {name!r}" for name in parts if name not in OWN)]
        self._other_kernels = other_kernels
        self._version = 0
        self._has_room = False
        self._redone: tuple[int, StoredVersion] | None = None
        """Newer version than the resumed one, which this worker had recorded: it is made again, and compared."""

    def _bytes(self, tensor: Any) -> np.ndarray:  # noqa: ANN401
        return self._framework.tensors.bytes_of(tensor)

    # --- commits

    def commit(self, calls: int, steps: int) -> None:
        """Keep the state behind so many calls and steps; see Resumable.commit.

        After a StallError it may be called again.
        """
        self._require_all_recorded()
        taken = {name: part.take() for name, part in self._parts.items()}
        items = list(items_of(taken))
        if self._version % _COMPARED_EACH == 0:
            self._require_alike(items)
        self._version += 1
        self._write(taken, items, calls, steps)
        self._peers.say(steps)

    def _require_all_recorded(self) -> None:
        """Wait until all have recorded the version before.

        Raises:
            MismatchError: they have done so after different numbers of steps.
            ConfigError: a worker has called join().
        """
        said = self._peers.said()
        if 0 in said:
            raise ConfigError(
                f"rank {self._place.worker}: worker {said.index(0)} has called join(), and commits nothing more; what "
                "all workers keep ends with that, so call join() behind the last commit of all"
            )
        self._require_same_steps(said)

    def _require_same_steps(self, made: list[int]) -> None:
        if len(set(made)) > 1:
            steps = ", ".join(f"worker {worker}: {count}" for worker, count in enumerate(made))
            raise MismatchError(
                f"rank {self._place.worker}: workers committed version {self._version} after different numbers of "
                f"steps ({steps}); have all workers commit the same steps"
            )

    def _require_alike(self, items: list[Item]) -> None:
        """Raise MismatchError where states differ that should be equal on all workers."""
        own = [[item.name, zlib.crc32(self._bytes(item.tensor).data)] for item in items if item.is_alike]
        all_sums = self._peers.gather(own, "coarse/faults/alike") if own else []
        for worker, other in enumerate(all_sums):
            for (name, mine), (_, theirs) in zip(own, other, strict=False):
                if mine != theirs:
                    raise MismatchError(
                        f"rank {self._place.worker}: {name} differs between this worker and worker {worker}, and all "
                        f"workers should have equal values after a step; {self._framework.remedy}"
                    )

    def _write(self, taken: dict[str, Taken], items: list[Item], calls: int, steps: int) -> None:
        place = self._place
        ranges, data_bytes = _ranges(items, place.local.index(place.worker), len(place.local))
        layout = json.dumps({
            "worker": place.worker, "workers": place.num_workers, "script": _script(),
            "kernels": self._framework.kernels(), "imports": imports(), "calls": calls, "steps": steps,
            "ranges": ranges,
            "names": [item.name for item in items],
            "not repeated": [n for n, item in enumerate(items) if not item.is_repeated],
            "alike": [n for n, item in enumerate(items) if item.is_alike],
            "trees": {name: each.tree for name, each in taken.items()},
        }).encode()  # fmt: skip
        if not self._has_room:
            self._memory.reserve(data_bytes, len(layout))
            self._has_room = True
        slot = self._memory.slot(self._version)
        data = slot.begin(data_bytes, len(layout))
        sums = BlockSums(data, slot.checksum)
        for number, first, nbytes, at in ranges:
            source = self._bytes(items[number].tensor)[first : first + nbytes]
            _copy(source, data[at : at + nbytes], sums, at)
        sums.written_to(data_bytes)
        if self._redone is not None:
            self._compare_redone(layout, sums.sums, steps)
        slot.record(self._version, layout, sums.sums)

    def _compare_redone(self, layout: bytes, sums: np.ndarray, steps: int) -> None:
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
            compared = [r for r in now["ranges"] if r[0] not in now["not repeated"]]
            hit = [r for r in compared if any(_overlaps(r, block) for block in blocks)]
            names = sorted({now["names"][number] for number, *_ in hit})
        if names:
            self._tell(
                f"worker {self._place.worker} made step {steps} again with other bits ({', '.join(names[:3])}): the "
                "script does not repeat itself"
            )

    # --- going on

    def go_on(self) -> tuple[int, int]:
        """Restore the newest version that is whole on all workers; return its calls and steps, or 0 and 0."""
        seen, whole = self._memory.found()
        layouts = {number: json.loads(version.layout) for number, version in whole.items()}
        counts = sorted({layout["workers"] for layout in layouts.values()})
        steps = [[number, layout["steps"]] for number, layout in layouts.items()]
        own = [list(seen.whole), list(seen.damaged), counts, steps, self._statement]
        all_seen = self._peers.gather(own, "coarse/faults/seen")
        self._require_same_statements([stated for *_, stated in all_seen])
        others = {count for _, _, made_by, *_ in all_seen for count in made_by} - {self._place.num_workers}
        if others:
            raise StorageError(
                f"{min(others)} workers made the states that are kept, and this job has {self._place.num_workers}; go "
                "on with as many, or name an empty folder in [faults] memory"
            )
        choice = choose([type(seen)(tuple(each), tuple(bad)) for each, bad, *_ in all_seen])
        self._tell_passed_over(choice)
        self._version = choice.version
        if choice.version == 0:
            return 0, 0
        self._require_same_steps([dict(map(tuple, found))[choice.version] for *_, found, _ in all_seen])
        kept, layout = whole[choice.version], layouts[choice.version]
        self._require_same_job(layout)
        trees, names = layout["trees"], layout["names"]
        if missing := sorted(self._parts.keys() ^ trees.keys()):
            raise CheckpointError(
                f"the states that are kept have the parts {sorted(trees.keys() - OWN)}, and Resumable "
                f"was given {sorted(self._parts.keys() - OWN)} ({missing[0]!r} differs); give the same parts"
            )
        wanted = {name: self._parts[name].wanted(trees[name]) for name in trees}
        tensors = [tensor for name in trees for tensor in wanted[name]]
        if len(tensors) != len(names):
            raise CheckpointError(f"the states that are kept have {len(names)} tensors, {len(tensors)} were expected")
        for worker in self._place.local:
            stored = kept if worker == self._place.worker else self._memory.of_other(worker, choice.version)
            self._read(stored, names, tensors, is_own=worker == self._place.worker)
        for name, part in self._parts.items():
            part.put(trees[name], wanted[name])
        self._redone = (choice.version + 1, whole[choice.version + 1]) if choice.version + 1 in whole else None
        if self._redone is not None:  # its slot is written anew before it is compared
            number, before = self._redone
            self._redone = number, before._replace(sums=before.sums.copy(), data=before.data[:0])
        return int(layout["calls"]), int(layout["steps"])

    def _require_same_statements(self, statements: list[list[str]]) -> None:
        """Raise MismatchError where workers gave Resumable different arguments."""
        for worker, other in enumerate(statements):
            if other != self._statement:
                differing = sorted(set(self._statement) ^ set(other)) or other
                raise MismatchError(
                    f"rank {self._place.worker}: Resumable was given {', '.join(differing)} on this worker or on "
                    f"worker {worker} alone; give the same on all workers, in one order"
                )

    def _read(self, stored: StoredVersion, names: list[str], tensors: list[Any], *, is_own: bool) -> None:
        """Fill tensors with the bytes that one worker's version has of them."""
        layout = json.loads(stored.layout)
        places = {name: place for place, name in enumerate(names)}
        alike = set(layout["alike"])
        for number, first, nbytes, place in layout["ranges"]:
            if not is_own and number not in alike:
                continue
            target = self._bytes(tensors[places[layout["names"][number]]])
            target[first : first + nbytes] = stored.data[place : place + nbytes]

    def _tell_passed_over(self, choice: Choice) -> None:
        if self._place.worker == 0:
            for worker, version in choice.passed_over:
                kept = f"version {choice.version} is gone on from"
                self._tell(f"version {version} of the states is damaged with worker {worker}; {kept}")

    def _require_same_job(self, layout: dict[str, Plain]) -> None:
        """Raise an error where the kept states are of another job.

        Raises:
            StorageError: they are another script's or worker's.
            ConfigError: they were made by other kernels.
        """
        for what, own in (("script", _script()), ("worker", self._place.worker)):
            if layout[what] != own:
                raise StorageError(
                    f"the states that are kept are of another job: its {what} is {layout[what]!r}, and this one's is "
                    f"{own!r}; go on with that, or name an empty folder in [faults] memory"
                )
        kernels = self._framework.kernels()
        if layout["kernels"] != kernels and not self._other_kernels:
            raise ConfigError(
                f"the states that are kept were made by {layout['kernels']}, and here are {kernels}, whose sums may "
                "have other bits; go on with those, or say Resumable(other_kernels=True)"
            )


def _script() -> str:
    return os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else ""


def _ranges(items: list[Item], place: int, count: int) -> tuple[Ranges, int]:
    """Return the ranges that a worker stores, the `place`-th of `count` on its node, and their bytes."""
    total = sum(item.tensor.nbytes for item in items if item.is_alike)
    begin, end = total * place // count, total * (place + 1) // count
    ranges: Ranges = []
    at = within = 0
    is_repeated = True
    for number, item in enumerate(items):
        nbytes = item.tensor.nbytes
        first, last = 0, nbytes
        if item.is_repeated != is_repeated:  # a checksum is of one kind alone
            at, is_repeated = -(-at // BLOCK_BYTES) * BLOCK_BYTES, item.is_repeated
        if item.is_alike:
            first, last = max(begin - within, 0), min(end - within, nbytes)
            within += nbytes
        if first < last:
            ranges.append((number, first, last - first, at))
            at += -(-(last - first) // _ALIGN_BYTES) * _ALIGN_BYTES
    return ranges, at


def _copy(source: np.ndarray, target: np.ndarray, sums: BlockSums, place: int) -> None:
    """Copy bytes to a place of the data, a MiB at a time with its checksum."""
    for begin in range(0, len(target), BLOCK_BYTES):
        end = min(begin + BLOCK_BYTES, len(target))
        target[begin:end] = source[begin:end]
        sums.written_to(place + end)


def _overlaps(stored: list[int], block: int) -> bool:
    _, _, nbytes, place = stored
    return place < (block + 1) * BLOCK_BYTES and place + nbytes > block * BLOCK_BYTES
