"""Buckets that a switch adds: workers push them, and get the sums back."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from coarse.client.client import Client
from coarse.collectives.progress import Conditions, Job, Pending, ProgressThread
from coarse.errors import ConfigError, StallError
from coarse.luwu.client.exponents import exponents_of_model
from coarse.luwu.client.model import RemoteModel, new_model
from coarse.luwu.many_to_one.tree import plan_roles
from coarse.luwu.store.declaration import ALL_REDUCE, WIRES, Declaration
from coarse.luwu.store.fixed_point import ZERO_EXPONENT, FixedPoint, format_of
from coarse.luwu.store.layout import PagedModel, PagedTensor, PagedUnit
from coarse.luwu.store.packed_chunk import chunk_exponents, decode_blocks, encode_blocks
from coarse.luwu.switch import Switch
from coarse.protocol.dtypes import DType, Op, narrowed, widened
from coarse.protocol.plan import Placement
from coarse.protocol.records import Descriptor
from coarse.storage.reduce import scale

_ADDING, _AGREEING = range(2)
"""Lanes of the thread."""
_GIVEN_UP = "an all-reduce was not finished"


class _Until:
    """Event that a job waits for; see Condition."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self.is_over = is_over

    def missing(self) -> tuple[int, ...]:
        """Return no ranks: the waiting thread asks the root for those that are missing."""
        return ()


class _Open:
    """Buckets that are all-reduced, until there are others."""

    def __init__(self, client: Client, switch: Switch, placement: Placement, descriptors: Sequence[Descriptor]) -> None:
        wire = WIRES[switch.sum]
        nodes, switches = plan_roles([switch.tree(placement).root], switch.below, placement)
        units = tuple(
            PagedUnit(one.name, (PagedTensor(one.name, (math.prod(one.shape),)),)) for one in descriptors
        )
        self.declaration = Declaration(
            model=PagedModel(units=units, pulled=wire, num_states=0), optimizer=ALL_REDUCE, groups=(), group_of=(),
            sum="integers" if wire.is_integer else "float32", num_workers=placement.num_clients, storage=None,
            gradients=wire, nodes=nodes, network=switch.network, loss=switch.loss, switches=switches,
        )  # fmt: skip
        self.unit_of = {one.name: unit for unit, one in enumerate(descriptors)}
        self.values = [np.zeros(unit.num_elements, wire.storage) for unit in units]
        """Values by unit, which are pushed and pulled."""
        self.sums: RemoteModel = new_model(client)
        self.maxima: RemoteModel | None = new_model(client) if wire.is_integer else None
        """Model by which exponents are agreed on."""
        self._of_exponents = exponents_of_model(self.declaration)
        self.num_exponents = [unit.num_elements for unit in self._of_exponents.model.units]
        """Number of exponents by unit, with those that align them."""
        self.is_open = False
        self._refusal: BaseException | None = None

    def open(self) -> None:
        """Open the models; all workers do."""
        try:
            self.sums.open(self.declaration)
            if self.maxima is not None:
                self.maxima.open(self._of_exponents)
        except BaseException as error:
            self._refusal = error
            raise
        self.is_open = True

    def opened(self) -> Conditions:
        """Wait until it is open; raise the error that prevented it."""
        yield _Until(lambda: self.is_open or self._refusal is not None)
        if self._refusal is not None:
            raise self._refusal

    def close(self, reason: str) -> None:
        """Close the models; all workers do."""
        self.sums.close(reason)
        if self.maxima is not None:
            self.maxima.close(reason)


class SwitchFlight:
    """Bucket that is on its way."""

    def __init__(self, pending: Pending, agreed: Pending | None, opened: _Open) -> None:
        """Start with `agreed`, which is awaited first where exponents are agreed on."""
        self.pending = pending
        self._agreed = agreed
        self._opened = opened

    def wait(self) -> None:
        """Wait for the sum; a stall is raised with the root's reasons."""
        try:
            self.pending.wait()
        except StallError as stalled:
            if self.pending.is_over or not self._opened.is_open:
                raise
            is_agreed = self._agreed is None or self._agreed.is_over
            awaited = self._opened.sums if is_agreed else self._opened.maxima
            assert awaited is not None
            raise awaited.stalled(self.pending.what) from stalled


class SwitchStream:
    """Thread with two lanes for a switch's all-reduces.

    In one lane workers agree on a bucket's exponents while in the other the bucket before it is added.
    """

    takes_gpus = False

    def __init__(self, client: Client, switch: Switch, placement: Placement) -> None:
        """Start the thread.

        Raises:
            ConfigError: devices that there are not, or that make no tree.
        """
        switch.tree(placement)
        self._client = client
        self._switch = switch
        self._placement = placement
        self._form: FixedPoint | None = None
        if WIRES[switch.sum].is_integer:
            self._form = format_of(switch.sum, placement.num_clients)
        self._thread = ProgressThread(client.link, "coarse-switch")
        self._now: _Open | None = None
        self._flights: deque[Pending] = deque()
        """Jobs, some of which may not be over."""
        self._is_closed = False
        client.before_leaving.append(self.close)

    def open(self) -> None:
        """Do nothing, as models are opened when buckets are prepared."""

    def prepare(self, descriptors: Sequence[Descriptor]) -> None:
        """Open models for these buckets, in the thread.

        Raises:
            ConfigError: a bucket of a type that float32 does not hold.
        """
        for one in descriptors:
            if DType(one.dtype).accumulator != np.float32:
                raise ConfigError(
                    f"a switch adds float32, and {one.name!r} is {DType(one.dtype).label}; convert the parameters, or "
                    "leave switch out",
                    key="switch",
                )
        before, self._now = self._now, _Open(self._client, self._switch, self._placement, descriptors)
        self._submit(_ADDING, partial(_follow, before, self._now), "the opening of the switch")

    def submit(self, descriptor: Descriptor, array: np.ndarray) -> SwitchFlight:
        """Begin the all-reduce of a bucket."""
        opened = self._now
        assert opened is not None
        unit = opened.unit_of[descriptor.name]
        values = widened(array, DType(descriptor.dtype))
        agreed: Pending | None = None
        exponents = np.empty(0, np.int32)
        if opened.maxima is not None:
            exponents = np.full(opened.num_exponents[unit], ZERO_EXPONENT, np.int32)
            agree = partial(_agree, opened, unit, values, exponents)
            agreed = self._submit(_AGREEING, agree, f"the exponents of {descriptor.name!r}")
        add = partial(self._add, opened, unit, descriptor, values, array, exponents, agreed)
        return SwitchFlight(self._submit(_ADDING, add, f"the all-reduce of {descriptor.name!r}"), agreed, opened)

    def close(self) -> None:
        """End the thread and close the models; shutdown does it, too."""
        if self._is_closed:
            return
        self._is_closed = True
        is_idle = all(one.is_over and one.failure is None for one in self._flights)
        self._thread.close()
        with suppress(ValueError):
            self._client.before_leaving.remove(self.close)
        if self._now is not None and self._now.is_open:
            self._now.close("" if is_idle else _GIVEN_UP)

    def _submit(self, lane: int, job: Job, what: str) -> Pending:
        while self._flights and self._flights[0].is_over and self._flights[0].failure is None:
            self._flights.popleft()
        pending = self._thread.submit(lane, job, what)
        self._flights.append(pending)
        return pending

    def _add(
        self,
        opened: _Open,
        unit: int,
        descriptor: Descriptor,
        values: np.ndarray,  # (n,) float32
        array: np.ndarray,  # (n,) of the descriptor's type, overwritten; it may be the same memory
        exponents: np.ndarray,
        agreed: Pending | None,
    ) -> Conditions:
        """Add a bucket of all workers."""
        yield from opened.opened()
        num_elements, sent, form = len(values), opened.values[unit], self._form
        if form is None:
            sent[:num_elements] = values
        else:
            assert agreed is not None
            yield _Until(lambda: agreed.is_over)
            agreed.is_done()  # or what went wrong
            encode_blocks(form, values, exponents, sent)
        yield from _reduced(opened.sums, unit, sent)
        total = values if values is array else np.empty_like(values)
        if form is None:
            total[:] = sent[:num_elements]
        else:
            decode_blocks(form, sent, exponents, total)
        if descriptor.op == Op.AVERAGE:
            scale(total, self._placement.num_clients, total)
        if total is not array:
            array[:] = narrowed(total, DType(descriptor.dtype))
        self._client.link.reduced_bytes += total.nbytes


def _follow(before: _Open | None, opened: _Open) -> None:
    """Close the models of the buckets before, and open those of the new ones."""
    if before is not None:
        before.close("")
    opened.open()


def _agree(
    opened: _Open,
    unit: int,
    values: np.ndarray,  # (n,) float32
    exponents: np.ndarray,  # (m,) int32, overwritten
) -> Conditions:
    """Agree on the exponents of a bucket."""
    assert opened.maxima is not None
    yield from opened.opened()
    own = chunk_exponents(values)
    exponents[: len(own)] = own
    yield from _reduced(opened.maxima, unit, exponents)


def _reduced(model: "RemoteModel", unit: int, values: np.ndarray) -> Conditions:
    """Combine a unit's values of all workers, in place."""
    pulled = model.all_reduce(unit, values)
    yield _Until(lambda: pulled.is_done or not model.is_sound)
    model.require_sound()
