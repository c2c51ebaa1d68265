"""Bugs planted one at a time, which jobs by seeds must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from coarse.errors import CoarseError
from coarse.faults import keeping, memory
from coarse.faults.torch import parts, passes
from coarse.protocol.commits import Choice
from coarse.storage import state_file
from tests.support.faults.job import BreakingFile, Plan, is_storage_error_due, run

MOST_SEEDS = 400


@contextmanager
def _word_before_bytes() -> Iterator[None]:
    begin, record = BreakingFile.begin, BreakingFile.record
    waiting: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def begin_aside(self: Any, data_bytes: int, layout_bytes: int) -> np.ndarray:
        waiting[id(self)] = begin(self, data_bytes, layout_bytes), np.zeros(data_bytes, np.uint8)
        return waiting[id(self)][1]

    def record_first(self: Any, number: int, layout: bytes, sums: np.ndarray) -> None:
        record(self, number, layout, sums)
        real, aside = waiting.pop(id(self))
        real[:] = aside

    with patch.object(BreakingFile, "begin", begin_aside), patch.object(BreakingFile, "record", record_first):
        yield


def _begin_without_invalidation(self: Any, data_bytes: int, layout_bytes: int) -> np.ndarray:
    self.stores.one()
    self.reserve(data_bytes, layout_bytes)
    self._sizes = (data_bytes, layout_bytes)
    data: np.ndarray = self._bytes[4096 : 4096 + data_bytes]
    data[: data_bytes // 2] = 0
    self.stores.one()
    return data


def _unread_sums(self: Any) -> Any:
    number = self.number()
    if not number:
        return None
    head = state_file._HEAD.unpack(self._bytes[8 : 8 + state_file._HEAD.size].tobytes())
    end = 4096 + head[1] + head[2]
    return state_file.StoredVersion(
        number, self._bytes[end - head[2] : end].tobytes(), self._bytes[4096 : 4096 + head[1]],
        self._bytes[end : end + 4 * state_file.num_blocks(head[1])].view("<u4"),
    )  # fmt: skip


def _no_arrival(self: Any, back: Any) -> None:
    self._back = None


def _newest_of_any(seen: Any) -> Choice:
    return Choice(max((version for each in seen for version in each.whole), default=0))


def _put_nothing(self: Any, kept: Any) -> None:
    self._back = None


def _put_casting(self: Any, tree: Any, tensors: Any) -> None:
    with patch.object(parts, "unpack", lambda tree, found: {"state": {}, "param_groups": _groups(self)}):
        _REAL_PUT(self, {**tree, "sharded": []}, tensors)


def _groups(part: Any) -> Any:
    return part._optimizer.state_dict()["param_groups"]


_REAL_PUT = parts.OptimizerPart.put


def _generators_before_skipping() -> Any:
    init = passes._Pass.__init__

    def begin(self: Any, source: Any, kept: Any, tell: Any) -> None:
        if kept is not None:
            kept = {**kept, "begin": None}
        init(self, source, kept, tell)

    return patch.object(passes._Pass, "__init__", begin)


def _skips_nothing(source: Any, count: int, tell: Any) -> Any:
    return iter(source[count:]) if isinstance(source, range) else iter(source)


def _reads_own_alone() -> Any:
    return patch.object(memory.StateMemory, "of_other", lambda self, worker, version: self.slot(version).read())


BUGS: dict[str, tuple[str, Callable[[], Any]]] = {
    "the word stands before the bytes": ("small", _word_before_bytes),
    "a version that is begun still counts": (
        "small", lambda: patch.object(BreakingFile, "begin", _begin_without_invalidation)
    ),
    "nobody waits for the others": (
        "small", lambda: patch.object(keeping.Keeping, "_require_all_recorded", lambda self: self._peers.said)
    ),
    "one slot": ("small", lambda: patch.object(memory, "slot_of", lambda version: 0)),
    "checksums are not read": ("small", lambda: patch.object(state_file.StateFile, "read", _unread_sums)),
    "the newest version of any worker": ("small", lambda: patch.object(keeping, "choose", _newest_of_any)),
    "the place in the loop is not kept": ("small", lambda: patch.object(passes.Passes, "put", _put_nothing)),
    "others' parts are not read": ("small", _reads_own_alone),
    "generators of the commit are not set": ("torch", lambda: patch.object(passes.Passes, "_arrive", _no_arrival)),
    "generators of the pass's beginning are not set": ("torch", _generators_before_skipping),
    "batches are not passed over": ("torch", lambda: patch.object(passes, "_passed_over", _skips_nothing)),
    "the optimizer's state is not put back": ("torch", lambda: patch.object(parts.OptimizerPart, "put", _put_casting)),
}  # fmt: skip
"""By what is wrong: the training that shows it, and what plants it."""


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Have a bug within."""
    with BUGS[bug][1]():
        yield


def seeds_to_find(bug: str, plan: Plan) -> int | None:
    """Return how many seeds it takes to find a bug; None where `MOST_SEEDS` do not."""
    quiet, _ = run(plan, None)
    with planted(bug):
        for seed in range(MOST_SEEDS):
            trace: list[str] = []
            try:
                found, _ = run(plan, seed, trace=trace)
            except (CoarseError, AssertionError, RuntimeError, ValueError, KeyError):
                if is_storage_error_due(trace):
                    continue
                return seed + 1
            if found != quiet:
                return seed + 1
    return None
