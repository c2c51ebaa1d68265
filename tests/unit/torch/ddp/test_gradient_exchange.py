"""What the exchange of gradients makes of hooks and waits, with one rank and no device behind it."""

import gc
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coarse.errors import InFlightError, StallError
from coarse.protocol.dtypes import DType, Op
from coarse.torch.ddp.buckets import BucketOfCopies, BucketOfViews, plan_buckets
from coarse.torch.ddp.gradients import GradientExchange


class OneRank:
    """A reducer whose results are this rank's own values; waits for indices in `stalls` stall once each."""

    rounds = None
    timer = None
    dual_sync = None

    def __init__(self):
        self.started = []
        self.stalls = []
        self.cancellable = set()

    def memory_of(self, descriptor, num_exact=0):
        return np.zeros(descriptor.shape, DType(descriptor.dtype).storage)

    def start(self, index):
        self.started.append(index)
        return SimpleNamespace(wait=partial(self._wait, index))

    def cancel(self, index):
        return index in self.cancellable

    def _wait(self, index):
        if index in self.stalls:
            self.stalls.remove(index)
            raise StallError(f"bucket {index} stalls")

    def close(self):
        pass


class Setup:
    """Two parameters in a bucket each, and the exchange of their gradients."""

    def __init__(self, kind, op=Op.AVERAGE):
        self.front, self.back = (torch.ones(4, requires_grad=True) for _ in range(2))
        self.reducer = OneRank()
        self.exchange = GradientExchange(self.reducer, op=op, rank=0, num_ranks=1, num_passes=1)
        named = {"front": self.front, "back": self.back}
        self.buckets = [
            kind(plan, tuple(named[name] for name in plan.names), self.reducer.memory_of(plan.descriptor))
            for plan in plan_buckets(list(named.items()), prefix="", op=op, bucket_bytes=16, num_ranks=1)
        ]
        assert len(self.buckets) == 2
        self.exchange.add(self.buckets)

    def backward(self, factor=1.0):
        (self.front.sum() * factor + self.back.sum() * factor).backward()


@pytest.fixture(params=[BucketOfViews, BucketOfCopies])
def setup(request):
    return Setup(request.param)


def clamp_into_a_new_tensor(parameter):
    parameter.grad = parameter.grad.clamp(-1, 1)


def clamp_in_place(parameter):
    parameter.grad.clamp_(-1, 1)


def let_go(parameter):
    parameter.grad = None


@pytest.mark.parametrize("disturb", [clamp_into_a_new_tensor, clamp_in_place, let_go])
def test_a_gradient_changed_or_replaced_in_flight_is_refused(setup, disturb):
    setup.backward()
    disturb(setup.front)
    with pytest.raises(InFlightError, match=r"'front', were changed or replaced .*before clipping"):
        setup.exchange.synchronize()


def test_a_gradient_may_be_replaced_once_it_is_synchronised(setup):
    for _ in range(3):
        setup.exchange.clear(set_to_none=True)
        setup.backward()
        setup.exchange.synchronize()
        clamp_into_a_new_tensor(setup.front)
        assert setup.front.grad.tolist() == [1.0] * 4


def test_gradients_that_were_let_go_are_not_kept_alive():
    setup = Setup(BucketOfCopies)
    setup.backward()
    gradient = weakref.ref(setup.front.grad)
    setup.exchange.clear(set_to_none=True)
    gc.collect()
    assert gradient() is None


@pytest.mark.parametrize("stalls", [[0], [1], [0, 1], [0, 0, 1]])
def test_a_bucket_is_pushed_once_however_often_a_synchronisation_stalls(setup, stalls):
    for step in range(1, 4):
        setup.exchange.clear(set_to_none=True)
        setup.reducer.stalls = list(stalls)
        setup.backward(step)
        for _ in stalls:
            with pytest.raises(StallError):
                setup.exchange.synchronize()
        setup.exchange.synchronize()
        assert sorted(setup.reducer.started) == sorted([0, 1] * step)
        assert setup.front.grad.tolist() == setup.back.grad.tolist() == [float(step)] * 4


@pytest.mark.parametrize("op", [Op.AVERAGE, Op.SUM])
@pytest.mark.parametrize("kind", [BucketOfViews, BucketOfCopies])
def test_a_bucket_that_is_pushed_once_more_is_so_once_however_often_that_stalls(kind, op):
    setup = Setup(kind, op)
    setup.backward(1)
    setup.backward(2)
    setup.reducer.stalls = [1, 1]
    for _ in range(2):
        with pytest.raises(StallError):
            setup.exchange.synchronize()
    setup.exchange.synchronize()
    assert sorted(setup.reducer.started) == [0, 0, 1, 1]
    assert setup.front.grad.tolist() == setup.back.grad.tolist() == [3.0] * 4


def test_a_backward_after_a_stall_is_pushed_too(setup):
    setup.backward(1)
    setup.reducer.stalls = [1]
    with pytest.raises(StallError):
        setup.exchange.synchronize()
    setup.backward(2)
    setup.exchange.synchronize()
    assert sorted(setup.reducer.started) == [0, 0, 1, 1]
    assert setup.front.grad.tolist() == setup.back.grad.tolist() == [3.0] * 4


@pytest.mark.parametrize("op", [Op.AVERAGE, Op.SUM])
@pytest.mark.parametrize("kind", [BucketOfViews, BucketOfCopies])
def test_a_bucket_that_was_recalled_is_neither_waited_for_nor_scaled_and_goes_once_with_all_gradients(kind, op):
    setup = Setup(kind, op)
    setup.reducer.cancellable = {0, 1}
    setup.reducer.stalls = [0, 1]
    setup.backward(1)
    setup.backward(2)
    assert setup.reducer.stalls == [0, 1]
    setup.reducer.stalls = []
    setup.exchange.synchronize()
    assert sorted(setup.reducer.started) == [0, 0, 1, 1]
    assert setup.front.grad.tolist() == setup.back.grad.tolist() == [3.0] * 4


def test_a_gradient_changed_before_its_bucket_was_recalled_is_refused(setup):
    setup.reducer.cancellable = {0, 1}
    setup.backward()
    clamp_in_place(setup.front)
    with pytest.raises(InFlightError, match=r"'front', were changed or replaced"):
        setup.backward()


@pytest.mark.parametrize("is_synchronised", [True, False])
def test_gradients_that_are_asked_for_and_not_kept_push_nothing(setup, is_synchronised):
    setup.reducer.cancellable = {0, 1}
    setup.backward()
    if is_synchronised:
        setup.exchange.synchronize()
    before = list(setup.reducer.started), [bucket.phase for bucket in setup.buckets]
    probe = torch.autograd.grad((setup.front * setup.back).sum(), [setup.front, setup.back], create_graph=True)
    assert [one.tolist() for one in probe] == [[1.0] * 4] * 2
    assert (setup.reducer.started, [bucket.phase for bucket in setup.buckets]) == before
    assert setup.exchange.is_synchronised == is_synchronised
    if not is_synchronised:
        setup.exchange.synchronize()
    assert setup.reducer.started == before[0]
    assert setup.front.grad.tolist() == setup.back.grad.tolist() == [1.0] * 4


class OfOneAlone(torch.autograd.Function):
    """The sum of two, which has no gradient for the second."""

    @staticmethod
    def forward(ctx, one, other):
        return one + other

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_a_gradient_that_autograd_does_not_have_changes_none(setup):
    for _ in range(2):
        setup.exchange.clear(set_to_none=True)
        OfOneAlone.apply(setup.back, setup.front).sum().backward()
        setup.exchange.synchronize()
        assert setup.front.grad is None
        assert setup.back.grad.tolist() == [1.0] * 4
    setup.backward()
    OfOneAlone.apply(setup.back, setup.front).sum().backward()
    setup.exchange.synchronize()
    assert setup.front.grad.tolist() == [1.0] * 4
    assert setup.back.grad.tolist() == [3.0] * 4


def test_a_backward_towards_some_parameters_alone_pushes_theirs(setup):
    setup.backward()
    setup.exchange.synchronize()
    phases = {id(bucket.parameters[0]): bucket.phase for bucket in setup.buckets}
    (setup.front * setup.back).sum().backward(inputs=[setup.back])
    moved = {bucket.parameters[0] is setup.back: bucket.phase for bucket in setup.buckets}
    assert moved[False] is phases[id(setup.front)]
    assert moved[True] is not phases[id(setup.back)]
    setup.exchange.synchronize()
    assert setup.front.grad.tolist() == [1.0] * 4
    assert setup.back.grad.tolist() == [2.0] * 4


def test_loss_weights_by_gradients_that_are_not_kept_leave_the_step_as_it_is(setup):
    for step in range(1, 4):
        setup.exchange.clear(set_to_none=True)
        losses = (setup.front * step).sum(), (setup.back * 2).sum()
        norms = [
            torch.autograd.grad(loss, one, retain_graph=True)[0].norm()
            for loss, one in zip(losses, (setup.front, setup.back), strict=True)
        ]
        sum(loss / norm for loss, norm in zip(losses, norms, strict=True)).backward()
        setup.exchange.synchronize()
        assert setup.reducer.started == [0, 1] * step or setup.reducer.started == [1, 0] * step
        for one in (setup.front, setup.back):
            assert one.grad.tolist() == [0.5] * 4


def test_zeroing_after_a_stalled_step_without_gradients_waits_for_what_is_in_flight(setup):
    setup.reducer.stalls = [0, 1]
    for _ in range(2):
        with pytest.raises(StallError):
            setup.exchange.synchronize()
    setup.reducer.stalls = [1]
    with pytest.raises(StallError):
        setup.exchange.clear(set_to_none=False)
    setup.exchange.clear(set_to_none=False)
    setup.backward()
    setup.exchange.synchronize()
    assert sorted(setup.reducer.started) == [0, 0, 1, 1]
    assert setup.front.grad.tolist() == [1.0] * 4


def test_a_step_whose_error_was_caught_pushes_the_late_gradient_as_the_other_ranks_do(setup):
    setup.backward(1)
    clamp_in_place(setup.front)
    with pytest.raises(InFlightError):
        setup.backward(2)
    setup.exchange.synchronize()
    (bucket,) = (bucket for bucket in setup.buckets if "front" in bucket.plan.names)
    assert setup.reducer.started.count(bucket.plan.index) == 2


class Gatherer:
    """Sums of sparse gradients over this rank alone; `stalls` of them stall."""

    def __init__(self):
        self.slots = []
        self.is_under_way = False
        self.asked = []
        self.stalls = 0

    def sum(self, others):
        if self.stalls:
            self.stalls -= 1
            raise StallError("a rank is late")
        self.asked.append([name for name, _ in others])
        return [(name, parameter) for name, parameter in others if parameter.grad.is_sparse]

    def clear(self, *, set_to_none):
        pass


@pytest.mark.parametrize("kind", [BucketOfViews, BucketOfCopies])
def test_a_sparse_gradient_is_told_of_by_its_bucket_and_gathered_when_all_have_landed(kind):
    table, front = torch.ones(4, 2, requires_grad=True), torch.ones(3, requires_grad=True)
    gatherer, reducer = Gatherer(), OneRank()
    taken_out = []
    exchange = GradientExchange(
        reducer,
        op=Op.SUM,
        rank=0,
        num_ranks=1,
        num_passes=1,
        sparse=gatherer,
        take_out=lambda: taken_out.append([name for name, _ in exchange.newly_sparse]),
    )
    named = {"front": front, "table": table}
    (plan,) = plan_buckets(list(named.items()), prefix="", op=Op.SUM, bucket_bytes=1000, num_ranks=1)
    bucket = kind(plan, tuple(named[name] for name in plan.names), reducer.memory_of(plan.descriptor))
    exchange.add([bucket])

    def backward():
        read = torch.nn.functional.embedding(torch.tensor([1, 1]), table, sparse=True)
        (read.sum() + front.sum()).backward()

    backward()
    assert bucket.views[plan.names.index("table")].tolist() == [[0.0, 0.0]] * 4
    gatherer.stalls = 2
    for _ in range(2):
        with pytest.raises(StallError):
            exchange.synchronize()
    assert not exchange.is_synchronised
    exchange.synchronize()
    assert reducer.started == [0]
    assert gatherer.asked == [list(plan.names)]
    assert taken_out == [["table"]]
    assert table.grad.to_dense()[:, 0].tolist() == [0.0, 2.0, 0.0, 0.0]
    assert front.grad.tolist() == [1.0] * 3
    exchange.clear(set_to_none=True)
    front.sum().backward()
    exchange.synchronize()
    assert len(gatherer.asked) == 1  # nobody has a sparse one
    assert exchange.last_absent == {}
