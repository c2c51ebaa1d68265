"""What the torch face decides without any rank: buckets, pieces, differences, structures."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coarse.luwu.store.fixed_point import adder_of
from coarse.luwu.switch import Switch
from coarse.parallel.data.byte_stream import capacity_of, cut
from coarse.protocol.agreement import first_difference
from coarse.protocol.dtypes import DType, Op
from coarse.torch.ddp import buckets
from coarse.torch.ddp.buckets import BucketOfCopies, BucketOfViews, plan_buckets
from coarse.torch.groups.objects import blank, pack, unpack
from coarse.torch.tensors import array_of, bytes_of, format_of, is_dense, names_of, tensor_of, wire_type_of


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 20))
def test_pieces_hold_every_byte_once_and_in_order(part_bytes, piece_bytes):
    pieces = cut(part_bytes, piece_bytes)
    found = [(section.part, byte) for piece in pieces for section in piece for byte in range(*section[1:3])]
    assert found == [(part, byte) for part, nbytes in enumerate(part_bytes) for byte in range(nbytes)]
    for piece in pieces:
        ends = [section.offset + section.end - section.begin for section in piece]
        assert [section.offset for section in piece] == [0, *ends[:-1]]
        assert 0 < ends[-1] <= piece_bytes <= max(piece_bytes, capacity_of(ends[-1]))


@given(st.integers(1, 10**9))
def test_few_capacities_serve_all_lengths(nbytes):
    capacity = capacity_of(nbytes)
    assert nbytes <= capacity
    assert capacity & (capacity - 1) == 0
    assert capacity < 2 * nbytes or capacity == capacity_of(1)


def parameters(*shapes):
    return [(f"p{i}", torch.zeros(shape)) for i, shape in enumerate(shapes)]


def test_buckets_follow_backward_and_the_front_is_most_urgent():
    named = parameters((100,), (7,), (300, 2), (5,), (3,))
    plans = plan_buckets(named, prefix="x/", op=Op.AVERAGE, bucket_bytes=400, num_ranks=1)
    assert [plan.names for plan in plans] == [("p4", "p3"), ("p2",), ("p1",), ("p0",)]
    assert [plan.descriptor.priority for plan in plans] == [0, 1, 2, 3]
    assert plans[1].descriptor.name == "x/gradients/float32/1"


def test_places_share_no_bucket_but_the_order_of_backward():
    named = parameters((4,), (4,), (4,), (4,))
    places = {named[1][1]: 1, named[3][1]: 1}
    plans = plan_buckets(named, prefix="", op=Op.SUM, bucket_bytes=400, num_ranks=1, places=places)
    assert {plan.names for plan in plans} == {("p3", "p1"), ("p2", "p0")}


def test_places_are_numbered_as_their_parameters_come(monkeypatch):
    gpus = dict(zip("abcd", (5, None, 2, 5), strict=True))
    tensors = {name: torch.zeros(1) for name in gpus}
    number = {tensor: gpus[name] for name, tensor in tensors.items()}
    monkeypatch.setattr(buckets, "goes_by_gpu", lambda tensor: number[tensor] is not None)
    monkeypatch.setattr(buckets, "gpu_of", number.__getitem__)
    assert list(buckets.places_of(tensors.values()).values()) == [1, 0, 2, 1]


def test_types_share_no_bucket_but_the_order_of_backward():
    named = [("a", torch.zeros(4)), ("b", torch.zeros(4).double()), ("c", torch.zeros(4)), ("d", torch.zeros(4))]
    plans = plan_buckets(named, prefix="", op=Op.SUM, bucket_bytes=32, num_ranks=1)
    assert [plan.names for plan in plans] == [("d", "c"), ("b",), ("a",)]
    assert [plan.descriptor.dtype for plan in plans] == [DType.FLOAT32, DType.FLOAT64, DType.FLOAT32]


@pytest.fixture(params=[BucketOfViews, BucketOfCopies])
def bucket(request):
    named = [("w", torch.zeros(3, 2, requires_grad=True)), ("b", torch.zeros(5, requires_grad=True))]
    (plan,) = plan_buckets(named, prefix="", op=Op.AVERAGE, bucket_bytes=1000, num_ranks=1)
    members = tuple(dict(named)[name] for name in plan.names)
    return request.param(plan, members, np.full(plan.descriptor.shape, np.nan, np.float32))


def test_absent_gradients_are_zero_and_present_ones_counted(bucket):
    bias, weight = bucket.parameters
    weight.grad = torch.full((3, 2), 2.0)
    bucket.put(1, weight.grad)
    bucket.has_gradient[1] = True
    bucket.seal(rank=0)
    assert (bucket.views[0] == 0).all()
    assert (bucket.views[1] == 2).all()
    assert bias.grad is None
    assert bucket.array[-3:].tolist() == [0, 1, 1]
    assert bucket.open(num_ranks=1) == {}
    assert bias.grad is None  # as on all ranks
    for counts, absent in (([0.5, 0.75, 0.75], {"b": 1}), ([0.75, 0.75, 0.75], {})):  # of 4 ranks, 3 took part
        bucket.seal(rank=0)
        bucket.array[-3:] = counts
        assert bucket.open(num_ranks=4) == absent
        assert bias.grad is not None


@pytest.mark.parametrize("sum_of", ["int32-switchml", "int64", "float32"])
def test_ranks_are_counted_beside_gradients_as_large_as_float32_has_them(sum_of):
    named = [("w", torch.zeros(3, 2, requires_grad=True)), ("b", torch.zeros(5, requires_grad=True))]
    block = Switch(sum=sum_of).block_elements
    (plan,) = plan_buckets(named, prefix="", op=Op.SUM, bucket_bytes=1000, num_ranks=3, block_elements=block)
    members = tuple(dict(named)[name] for name in plan.names)
    pushed = []
    for rank in range(3):
        bucket = BucketOfCopies(plan, members, np.zeros(plan.descriptor.shape, np.float32))
        for slot, parameter in enumerate(members):
            lacks = plan.names[slot] == "b" and rank == 0
            parameter.grad = None if lacks else torch.full_like(parameter, 1e38)
            bucket.has_gradient[slot] = not lacks
        bucket.seal(rank)
        pushed.append(bucket.array)
    total = np.empty_like(bucket.array)
    adder_of(sum_of, 3)(pushed, total)
    bucket.array[:] = total
    assert bucket.open(num_ranks=3) == {"b": 1}


def test_of_a_bucket_on_a_gpu_presence_comes_from_the_host_where_it_has_changed(monkeypatch):
    named = [("w", torch.zeros(3, 2, requires_grad=True)), ("b", torch.zeros(5, requires_grad=True))]
    (plan,) = plan_buckets(named, prefix="", op=Op.AVERAGE, bucket_bytes=1000, num_ranks=4)
    members = tuple(dict(named)[name] for name in plan.names)
    bucket = BucketOfViews(plan, members, torch.zeros(plan.descriptor.shape))  # as one on a GPU is made
    crossed, tensor_of = [], buckets.tensor_of
    monkeypatch.setattr(buckets, "tensor_of", lambda *given: crossed.append(given) or tensor_of(*given))
    for present, times in (([1, 1], 1), ([1, 1], 0), ([0, 1], 1), ([0, 1], 0), ([1, 1], 1)):
        for slot, has in enumerate(present):
            members[slot].grad = torch.ones_like(members[slot]) if has else None
            bucket.has_gradient[slot] = bool(has)
        crossed.clear()
        bucket.seal(rank=0)
        assert len(crossed) == times
        assert bucket.flat[-3:].tolist() == [*present, 1]
        bucket.flat[-3:] = 0.5  # the result, of which the host reads a copy
        bucket.open(num_ranks=4)


def combined(contributions, op, num_ranks, dtype):
    """What devices make of the ranks' elements: summed and divided in float32, and rounded once."""
    total = torch.stack([one.float() for one in contributions]).sum(0)
    return (total / num_ranks if op == Op.AVERAGE else total).to(dtype)


@pytest.mark.parametrize("op", [Op.AVERAGE, Op.SUM])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("num_ranks", [1, 2, 64, 65, 256, 257, 1000])
def test_ranks_are_counted_exactly_in_every_type(num_ranks, dtype, op):
    named = [(name, torch.zeros(1, dtype=dtype, requires_grad=True)) for name in "ab"]
    (plan,) = plan_buckets(named, prefix="", op=op, bucket_bytes=1000, num_ranks=num_ranks)
    members = tuple(dict(named)[name] for name in plan.names)
    storage = np.uint16 if dtype == torch.bfloat16 else torch.zeros(1, dtype=dtype).numpy().dtype
    bucket = BucketOfCopies(plan, members, np.zeros(plan.descriptor.shape, storage))
    lacking = members[plan.names.index("a")]
    for absent, joined in ((0, 0), (1, 0), (num_ranks // 2, 0), (num_ranks, 0), (1, num_ranks // 3), (0, 1)):
        contributions = []
        for rank in range(num_ranks - joined):
            for parameter in members:
                parameter.grad = None if parameter is lacking and rank < absent else torch.zeros(1, dtype=dtype)
            bucket.has_gradient[:] = [True, True]
            bucket.seal(rank)
            contributions.append(bucket.flat.clone())
        if not contributions:
            continue
        bucket.flat.copy_(combined(contributions, op, num_ranks, dtype))
        missing = min(absent, len(contributions))
        assert bucket.open(num_ranks) == ({"a": missing} if 0 < missing < len(contributions) else {})
        assert (lacking.grad is None) == (missing == len(contributions))


def test_a_gradient_that_the_user_cleared_is_absent(bucket):
    bucket.parameters[1].grad = torch.ones(3, 2)
    bucket.has_gradient[1] = True
    bucket.parameters[1].grad = None
    bucket.seal(rank=0)
    assert bucket.array[-3:].tolist() == [0, 0, 1]
    bucket.views[1].fill_(3.0)
    bucket.give(1, is_own=False)
    assert (bucket.parameters[1].grad == 3).all()


def test_writing_to_a_gradient_shows(bucket):
    bucket.parameters[1].grad = torch.ones(3, 2)
    bucket.has_gradient[1] = True
    bucket.seal(rank=0)
    bucket.array[:-3] = 4.0  # a device
    bucket.open(None)
    assert not bucket.was_disturbed
    bucket.seal(rank=0)
    torch.nn.utils.clip_grad_norm_(bucket.parameters, 0.1)
    bucket.open(None)
    assert bucket.was_disturbed


def test_the_first_difference_names_who_has_what():
    alike = [("a", "float32[2]"), ("b", "float32[3]")]
    assert "'b' differs between ranks: float32[3] on ranks [0, 2]; float64[3] on ranks [1]" in first_difference(
        [alike, [("a", "float32[2]"), ("b", "float64[3]")], alike], "parameter"
    )
    assert "'b' differs between ranks: float32[3] on ranks [1]; missing" not in first_difference(
        [alike[:1], alike], "parameter"
    )
    assert "missing on ranks [0]; float32[3] on ranks [1]" in first_difference([alike[:1], alike], "parameter")
    assert "number 0 is 'a' on ranks [0]; 'b' on ranks [1]" in first_difference([alike, alike[::-1]], "parameter")


def test_a_tied_parameter_has_its_first_name_and_a_repeated_name_is_refused():
    tensor = torch.zeros(1)
    assert names_of([("a", tensor), ("b", tensor)]) == {tensor: "a"}
    with pytest.raises(ValueError, match="'a' comes twice"):
        names_of([("a", tensor), ("a", torch.zeros(2))])


def test_a_memory_format_is_part_of_what_ranks_agree_on():
    image = torch.zeros(2, 3, 4, 4)
    assert format_of(image) == "float32[2, 3, 4, 4]"
    assert "strides [48, 1, 12, 3]" in format_of(image.to(memory_format=torch.channels_last))


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 4).t(), True),
        (torch.zeros(2, 3, 1, 4).to(memory_format=torch.channels_last), True),
        (torch.zeros(()), True),
        (torch.zeros(3, 4)[:, ::2], False),
        (torch.zeros(1).expand(5), False),
        (torch.zeros(0, 3), False),
    ],
)
def test_dense_means_one_block_in_any_order(tensor, dense):
    assert is_dense(tensor) is dense


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=3)
    ),
)


@given(plain)
def test_a_structure_survives_json(value):
    tensors = []
    packed = pack(value, tensors)
    assert unpack(packed, iter(tensors)) == value
    assert tensors == []


def test_tensors_of_a_structure_stand_by_type_and_shape():
    given_tensors = []
    packed = pack({"state": {0: {"step": torch.tensor(3.0), "m": torch.zeros(2, 3).bfloat16()}}}, given_tensors)
    made = blank(packed)
    state = unpack(packed, iter(made))["state"][0]
    assert [tensor.shape for tensor in given_tensors] == [(), (2, 3)]
    assert state["m"] is made[1]
    assert (state["m"].dtype, state["m"].shape) == (torch.bfloat16, (2, 3))
    with pytest.raises(TypeError, match=r"state\['odd'\] is a object"):
        pack({"odd": object()}, [])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_tensors_and_arrays_share_their_memory(dtype):
    tensor = torch.arange(12).view(3, 4).to(dtype).t()
    array = array_of(tensor)
    assert array.shape == (4, 3)
    wire = wire_type_of(tensor, "t")
    assert array.dtype == wire.storage
    again = tensor_of(array, wire)
    assert again.dtype == dtype
    assert torch.equal(again, tensor)
    again[0, 0] = 7
    assert tensor[0, 0] == 7
    assert bytes_of(tensor.contiguous()).nbytes == tensor.nbytes
