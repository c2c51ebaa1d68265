"""Gradients of many parameters in flat buckets, and the state of each between two steps.

[Note: presence] Behind its gradients every bucket carries one element per parameter, 1 where this rank has a gradient
of it and else 0, and a last one that is always 1. They are combined like the gradients, so the result gives the number
of ranks that had each gradient, and the number that took part (ranks that have joined take none). These are counts, and
half types cannot count far: bfloat16 does not tell 256 from 257. There each element becomes a row of as many as there
are cohorts of 64 ranks, and each rank writes into its own cohort's column. Where a block of elements shares an
exponent, as in a switch's sums of integers, they lie in separate blocks, or a large gradient would make zeros of them.
A last element of NaN says that some rank has a sparse gradient (coarse/torch/ddp/sparse_gradients.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch.autograd.graph import increment_version

from coarse.parallel.data.bucket_plan import BucketPlan
from coarse.parallel.data.bucket_plan import plan_buckets as plan_of_sizes
from coarse.parallel.data.flight import MOVES, BucketPhase
from coarse.parallel.data.reducer import Flight
from coarse.protocol import override
from coarse.protocol.dtypes import STORAGE, Op
from coarse.torch.compression import NoCompression
from coarse.torch.on_gpu import goes_by_gpu, gpu_of, in_its_stream
from coarse.torch.tensors import describe, is_dense, tensor_of


def plan_buckets(
    parameters: Sequence[tuple[str, torch.Tensor]],
    *,
    prefix: str,
    op: Op,
    bucket_bytes: int,
    num_ranks: int,
    first_index: int = 0,
    compression: type[NoCompression] = NoCompression,
    places: Mapping[torch.Tensor, int] = MappingProxyType({}),
    block_elements: int = 1,
) -> list[BucketPlan]:
    """Return the buckets of named parameters; see coarse.parallel.data.bucket_plan.

    Raises:
        TypeError: a type that devices cannot add.
    """
    sizes = []
    for name, parameter in parameters:
        is_narrowed = compression.narrows(parameter.dtype)
        reals = torch.view_as_real(parameter.detach()) if parameter.is_complex() else parameter
        travels = parameter.new_empty(0, dtype=compression.wire_dtype) if is_narrowed else reals
        sizes.append((name, describe(travels, name, op, 0).dtype, reals.numel()))
    return plan_of_sizes(
        sizes, prefix=prefix, op=op, bucket_bytes=bucket_bytes, num_ranks=num_ranks, first_index=first_index,
        places={name: places.get(parameter, 0) for name, parameter in parameters}, block_elements=block_elements,
    )  # fmt: skip


def places_of(parameters: Iterable[torch.Tensor]) -> dict[torch.Tensor, int]:
    """Return the place of each parameter's gradient: 0 on the host, else its GPU's number.

    GPUs are numbered among those of these parameters.
    """
    numbers: dict[int, int] = {}
    return {
        parameter: numbers.setdefault(gpu_of(parameter), len(numbers) + 1) if goes_by_gpu(parameter) else 0
        for parameter in parameters
    }


@dataclass
class Bucket:
    """Memory and state of one bucket; subclasses relate `.grad` to that memory."""

    plan: BucketPlan
    parameters: tuple[torch.Tensor, ...]
    array: np.ndarray | torch.Tensor  # (plan.descriptor.shape) storage type
    """Memory on the host, or a tensor on the parameters' GPU."""
    flat: torch.Tensor = field(init=False)
    views: tuple[torch.Tensor, ...] = field(init=False)
    arrivals: list[int] = field(init=False)
    """Number of backward passes that have given each parameter a gradient since the last step."""
    has_gradient: list[bool] = field(init=False)
    """True for each parameter that has a gradient, in the sense of torch's `.grad is not None`."""
    came_sparse: list[bool] = field(init=False)
    """True for each parameter whose last gradient was a sparse one."""
    num_awaited: int = field(init=False)
    """Number of parameters whose last backward pass of this step is still to come."""
    phase: BucketPhase = BucketPhase.FILLING
    """Phase of its way, which is all that is known of it; GradientExchange alone changes it, by `moved`."""
    flight: Flight | None = None
    """Flight that was started last; it tells its progress."""
    predivide: float = 1.0
    """Divisor of gradients before they are summed; the result is multiplied by it."""
    has_sparse: bool = False
    """True if some rank had a sparse gradient, by the last result."""
    has_sum: bool = True
    """True if any rank took part in the last result; at first none has, where a strategy's sums come late."""
    was_disturbed: bool = field(init=False, default=False)
    """True if anything but a device wrote to the gradients, or put others in their place, between the last `seal` and
    `open`. A write through `.data` leaves no trace."""

    is_on_gpu: bool = field(init=False, default=False)
    """True if its memory is on a GPU."""

    def __post_init__(self) -> None:
        wire = self.plan.descriptor.dtype
        self.is_on_gpu = isinstance(self.array, torch.Tensor)
        self.flat = self.array if isinstance(self.array, torch.Tensor) else tensor_of(self.array, wire)
        self.views = tuple(
            _view_like(parameter, self.flat, slot.offset_elements)
            for parameter, slot in zip(self.parameters, self.plan.layout.slots, strict=True)
        )
        self.has_gradient = [False] * len(self.parameters)
        self.came_sparse = [False] * len(self.parameters)
        rows, cohorts = len(self.parameters) + 1, self.plan.num_cohorts
        self._presence = self._presence_on_host(rows, cohorts)
        self._presence_tensor = self.flat[-rows * cohorts :].view(rows, cohorts)
        self._said: tuple[bytes, torch.Tensor] | None = None
        """Last presence that this rank stated, and the same on the GPU, for a bucket there."""
        self._one, self._nan = self._in_storage(1.0), self._in_storage(float("nan"))
        self._sealed: Sequence[tuple[torch.Tensor | None, int]] = ()
        """Gradient of each parameter, and its version, when the bucket was sealed."""
        self.begin_step()

    def _presence_on_host(self, rows: int, cohorts: int) -> np.ndarray:
        """Return the memory in which [Note: presence] is written and read, (rows, cohorts) storage type.

        For a bucket on a GPU, it is a copy.
        """
        if isinstance(self.array, torch.Tensor):
            return np.zeros((rows, cohorts), STORAGE[self.plan.descriptor.dtype])
        return self.array[-rows * cohorts :].reshape(rows, cohorts)

    def move(self, to: BucketPhase) -> None:
        """Go on to another phase; AssertionError if it may not follow this one (`flight.MOVES`)."""
        assert to in MOVES[self.phase], f"a bucket that is {self.phase.name} cannot become {to.name}"
        self.phase = to

    def in_its_stream(self) -> AbstractContextManager[None]:
        """Have this thread work with the bucket's memory, which is on a GPU, in torch's stream."""
        return in_its_stream(self.flat)

    def begin_step(self) -> None:
        """Wait for all parameters' gradients anew."""
        self.arrivals = [0] * len(self.parameters)
        self.num_awaited = len(self.parameters)

    # --- from this rank's gradients to those of all

    def seal(self, rank: int) -> None:
        """Make the memory hold this rank's gradients, zeros where it has none, and note their versions.

        It also states which of them there are; see [Note: presence].
        """
        self._presence[:] = 0
        self._presence[:, rank // self.plan.cohort_ranks] = self._one
        for slot, view in enumerate(self.views):
            gradient = self.parameters[slot].grad
            if self.came_sparse[slot] and gradient is not None and gradient is not view and not gradient.is_sparse:
                self.has_gradient[slot] = True  # somebody has made it dense
            if gradient is None or not self.has_gradient[slot]:
                self.has_gradient[slot] = False
                self._presence[slot] = 0
                view.zero_()
            elif gradient is not view:
                self.put(slot, gradient)
        if self.predivide != 1.0:
            self._multiply(1.0 / self.predivide)
        sealed = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse:
                self._presence[-1] = self._nan
            sealed.append((gradient, 0 if gradient is None else gradient._version))
        self._sealed = sealed
        if isinstance(self.array, torch.Tensor):
            self._say_presence(self.array.device)

    def _say_presence(self, device: torch.device) -> None:
        """Write this rank's presence to a bucket on a GPU, from a copy there.

        The copy is made anew where the presence has changed. Backward would wait for every copy from the host.
        """
        said = self._presence.tobytes()
        if self._said is None or self._said[0] != said:
            self._said = said, tensor_of(self._presence.copy(), self.plan.descriptor.dtype).to(device)
        self._presence_tensor.data.copy_(self._said[1])  # by `.data`, so that no version changes

    def open(self, num_ranks: int | None) -> dict[str, int]:
        """Let `.grad` hold the result, which lies in the memory.

        Return by name the number of ranks that lacked a gradient that some had. A gradient that all lacked is None.
        Without a number of ranks the push was cancelled, and there is no result.
        """
        sealed, self._sealed = self._sealed, ()
        self.was_disturbed = self.has_sparse = False
        for parameter, (gradient, version) in zip(self.parameters, sealed, strict=True):
            if parameter.grad is not gradient or (gradient is not None and gradient._version != version):
                self.was_disturbed = True
        if num_ranks is None:
            if self.predivide != 1.0:
                self._multiply(self.predivide)
            return {}
        increment_version([self.flat])  # see [Note: writes that autograd sees]
        if isinstance(self.array, torch.Tensor):
            tensor_of(self._presence, self.plan.descriptor.dtype).copy_(self._presence_tensor)
        if self.predivide != 1.0:
            self._multiply(self.predivide)
        self.has_sum = bool(self._presence[-1].any())
        if (self._presence == self._presence[-1]).all():  # every rank had every gradient
            if not self.shows_results:
                for slot in range(len(self.parameters)):
                    self.give(slot, is_own=True)
            return {}
        self.has_sparse = bool(self._presence_tensor[-1].isnan().any())
        counts = self._counts(num_ranks)
        took_part = num_ranks if self.has_sparse else counts.pop()
        absent = {}
        for slot, count in enumerate(counts):
            gradient = self.parameters[slot].grad
            if gradient is not None and gradient.is_sparse:
                continue
            if not count:
                self.parameters[slot].grad = None
                self.has_gradient[slot] = False
                continue
            if count < took_part:
                absent[self.plan.names[slot]] = took_part - count
            self.give(slot, is_own=self.has_gradient[slot])
            self.has_gradient[slot] = True
        return absent

    def _multiply(self, factor: float) -> None:
        """Multiply the summed part of the gradients."""
        self.flat[: -self._presence.size].mul_(factor)

    def _counts(self, num_ranks: int) -> list[int]:
        """Return the number of ranks that had each gradient, and of those that took part."""
        scale = num_ranks if self.plan.descriptor.op == Op.AVERAGE else 1
        found = self._presence_tensor[:-1] if self.has_sparse else self._presence_tensor
        counts: list[int] = torch.round(found.double() * scale).long().sum(1).tolist()
        return counts

    def _in_storage(self, value: float) -> np.generic:
        one = torch.full((1,), value, dtype=self.flat.dtype, device="cpu")
        is_half = self.flat.dtype == torch.bfloat16
        storage: np.ndarray = (one.view(torch.uint16) if is_half else one).numpy()
        return storage[0]

    def make_way(self, slot: int) -> None:
        """Make way for a sparse gradient: where there is none yet, remove the bucket's zeros.

        Autograd would add to them.
        """
        if not self.has_gradient[slot] and self.parameters[slot].grad is self.views[slot]:
            self.parameters[slot].grad = None

    def take_over(self) -> None:
        """Hold the gradients that the parameters have, which are those of all ranks."""
        for slot, parameter in enumerate(self.parameters):
            self.has_gradient[slot] = parameter.grad is not None
            if parameter.grad is not None and self.shows_results:
                self.put(slot, parameter.grad)
        self.phase = BucketPhase.SUMMED

    # --- how gradients and the bucket's memory belong together

    shows_results: ClassVar[bool]
    """True if `.grad` is the bucket's memory, so that a result is there as soon as it has landed."""

    def put(self, slot: int, gradient: torch.Tensor) -> None:
        """Make the bucket's memory hold a gradient that lies elsewhere."""
        raise NotImplementedError

    def give(self, slot: int, *, is_own: bool) -> None:
        """Put a result that some rank contributed to into `.grad`, unless the user cleared this rank's own."""
        raise NotImplementedError

    def scale(self, factor: float) -> None:
        """Multiply all gradients."""
        raise NotImplementedError

    def clear(self, *, set_to_none: bool) -> None:
        """Zero these parameters' gradients, as zero_grad does."""
        raise NotImplementedError

    def release(self) -> None:
        """Let no gradient lie in the bucket's memory any more, which others will use."""


class BucketOfViews(Bucket):
    """Bucket of which `.grad` is a view: backward adds to it there, and nothing is ever copied.

    Only a `.grad` that was None, so that autograd put a new tensor there, is copied once.
    """

    shows_results = True

    @override
    def put(self, slot: int, gradient: torch.Tensor) -> None:
        with torch.no_grad():
            self.views[slot].copy_(gradient)
        self.parameters[slot].grad = self.views[slot]

    @override
    def give(self, slot: int, *, is_own: bool) -> None:
        if not is_own:
            self.parameters[slot].grad = self.views[slot]

    @override
    def scale(self, factor: float) -> None:
        self.flat.mul_(factor)

    def clear(self, *, set_to_none: bool) -> None:
        """Zero in place and keep the views: were `.grad` None, autograd would use its own heap."""
        self.flat.zero_()
        for slot, parameter in enumerate(self.parameters):
            if parameter.grad is not None and parameter.grad is not self.views[slot]:
                parameter.grad = self.views[slot]
            self.has_gradient[slot] &= not set_to_none

    @override
    def release(self) -> None:
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is view:
                parameter.grad = view.clone()


class BucketOfCopies(Bucket):
    """Bucket beside torch's own `.grad`, on any device; gradients are copied in and the result copied out."""

    shows_results = False

    @override
    def put(self, slot: int, gradient: torch.Tensor) -> None:
        self.views[slot].copy_(gradient.detach())

    @override
    def give(self, slot: int, *, is_own: bool) -> None:
        parameter = self.parameters[slot]
        if parameter.grad is None and not is_own:
            parameter.grad = torch.empty_like(parameter)
        if parameter.grad is not None:
            parameter.grad.detach().copy_(self.views[slot])

    @override
    def scale(self, factor: float) -> None:
        for slot, parameter in enumerate(self.parameters):
            if self.has_gradient[slot] and parameter.grad is not None:
                parameter.grad.detach().mul_(factor)

    @override
    def clear(self, *, set_to_none: bool) -> None:
        for slot, parameter in enumerate(self.parameters):
            if set_to_none:
                parameter.grad = None
                self.has_gradient[slot] = False
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()

    def release(self) -> None:
        """Do nothing, as no gradient ever lies in the bucket's memory."""


def _view_like(parameter: torch.Tensor, flat: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a part of the bucket in the parameter's memory format, so that backward adds without a copy.

    A complex gradient lies there as pairs of real numbers.
    """
    is_complex = parameter.is_complex()
    part = torch.view_as_complex(flat[: flat.numel() // 2 * 2].view(-1, 2)) if is_complex else flat
    first = offset // 2 if is_complex else offset
    if is_dense(parameter):
        return part.as_strided(parameter.shape, parameter.stride(), first)
    return part[first : first + parameter.numel()].view(parameter.shape)
