"""What is synchronised in one operation: a single tensor of a size, or the gradients of a model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.buckets import ddp_buckets
from coarse.hardware.models import Model, NamedShape, bert_large, resnet50

DTYPE = np.dtype(np.float32)
DEFAULT_SIZES = "4KiB,16KiB,64KiB,256KiB,800KiB,1MiB,4MiB,16MiB,98MiB,420MiB"
DEFAULT_SETS = "200-small,200-small-group,resnet50,bert-large"
MANY_SMALL, MANY_SMALL_GROUPED, MANY_SMALL_AT_ONCE = "200-small", "200-small-group", "800KiB"
"""200 tensors of 4 KiB, each a message of its own and all started before any is waited for; the same as one call for a
group of tensors, where a contender has such a call; and their bytes as one tensor."""
QUICK_SIZES = "4KiB,1MiB,16MiB"
QUICK_SETS = "resnet50"
GRADIENT_SETS: dict[str, Callable[[], Model]] = {"resnet50": resnet50, "bert-large": bert_large}

_UNIT_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BYTES_PER_ROUND = 8 * 2**20
_MAX_OPERATIONS_PER_ROUND = 32
_BYTES_PER_WORKLOAD = 4 * 2**30
_MIN_ROUNDS, _MAX_ROUNDS, _QUICK_ROUNDS = 7, 40, 3


@dataclass(frozen=True)
class Workload:
    """Tensors that one operation sums over the workers, in the order in which backward produces them."""

    name: str
    tensors: tuple[NamedShape, ...]
    is_apart: bool = False
    """Whether each tensor is a message of its own, whatever a contender would fuse."""
    is_grouped: bool = False
    """Whether they come in one call for a group; contenders without one send messages."""

    @property
    def numel(self) -> int:
        """Elements of all tensors."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.numel * DTYPE.itemsize

    @property
    def buckets(self) -> list[slice]:
        """The elements (of all tensors end to end) that DDP would send in one message; one tensor is one message."""
        if len(self.tensors) == 1:
            return [slice(0, self.numel)]
        numels = [math.prod(shape) for _, shape in self.tensors]
        ends = [0, *np.cumsum(numels).tolist()]
        if self.is_apart:
            return [slice(start, stop) for start, stop in pairwise(ends)]
        groups = ddp_buckets([numel * DTYPE.itemsize for numel in numels])
        return [slice(ends[group.start], ends[group.stop]) for group in groups]

    def views(self, flat: np.ndarray) -> list[np.ndarray]:
        """Each tensor as a view of `flat`, (numel,) float32, where they lie end to end."""
        views, start = [], 0
        for _, shape in self.tensors:
            views.append(flat[start : start + math.prod(shape)].reshape(shape))
            start += math.prod(shape)
        return views


@dataclass(frozen=True)
class Effort:
    """How often a workload is measured."""

    num_rounds: int
    num_operations: int
    """Operations of a round; a round's time is divided by it, so that short ones can be timed."""


def single_tensor(size: str) -> Workload:
    """One float32 tensor of `size`, which is written like 4KiB or 420MiB."""
    found = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB)", size.strip())
    nbytes = int(found[1]) * _UNIT_BYTES[found[2]] if found else 0
    if nbytes == 0 or nbytes % DTYPE.itemsize:
        raise ValueError(
            f"a size is a positive multiple of {DTYPE.itemsize} bytes written like 4KiB, 98MiB or 1GiB, got {size!r}"
        )
    return Workload(size.strip(), (("tensor", (nbytes // DTYPE.itemsize,)),))


def gradient_set(model: str) -> Workload:
    """The gradients of a model, last layers first; or many small tensors."""
    if model in (MANY_SMALL, MANY_SMALL_GROUPED):
        tensors = tuple((f"small{i}", (4 * 2**10 // DTYPE.itemsize,)) for i in range(200))
        return Workload(model, tensors, is_apart=True, is_grouped=model == MANY_SMALL_GROUPED)
    if model not in GRADIENT_SETS:
        known = ", ".join((MANY_SMALL, MANY_SMALL_GROUPED, *GRADIENT_SETS))
        raise ValueError(f"unknown gradient set {model!r}; there are {known}")
    return Workload(model, tuple(reversed(GRADIENT_SETS[model]().shapes)))


def parse_workloads(sizes: str, sets: str) -> list[Workload]:
    """Workloads from two comma-separated lists, either of which may be empty."""
    chosen = [single_tensor(size) for size in sizes.split(",") if size.strip()]
    chosen += [gradient_set(model.strip()) for model in sets.split(",") if model.strip()]
    if not chosen:
        raise ValueError("nothing to measure: both the sizes and the gradient sets are empty")
    return chosen


def effort_for(workload: Workload, *, quick: bool = False) -> Effort:
    """Many operations a round for small workloads, few rounds for large ones."""
    num_operations = min(_MAX_OPERATIONS_PER_ROUND, max(1, _BYTES_PER_ROUND // workload.nbytes))
    if quick:
        return Effort(_QUICK_ROUNDS, num_operations)
    num_rounds = _BYTES_PER_WORKLOAD // (workload.nbytes * num_operations)
    return Effort(min(_MAX_ROUNDS, max(_MIN_ROUNDS, num_rounds)), num_operations)
