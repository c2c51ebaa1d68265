"""Where a paged model's bytes lie."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coarse.errors import ConfigError
from coarse.luwu.store.layout import (
    ALIGN_ELEMENTS,
    BLOCK_BYTES,
    NUM_SLOTS,
    DiskLayout,
    PagedModel,
    PagedTensor,
    PagedUnit,
    step_bytes,
)
from coarse.protocol.dtypes import DType

shapes = st.lists(st.integers(0, 40), max_size=2).map(tuple)
units = st.lists(st.lists(st.tuples(shapes, st.booleans()), min_size=1, max_size=4), min_size=1, max_size=5)


def model_of(drawn: list[list[tuple[tuple[int, ...], bool]]], **options: object) -> PagedModel:
    return PagedModel(
        units=tuple(
            PagedUnit(f"{u}", tuple(PagedTensor(f"{u}.{t}", shape, trains) for t, (shape, trains) in enumerate(unit)))
            for u, unit in enumerate(drawn)
        ),
        **options,
    )


@settings(max_examples=60, deadline=None)
@given(units, st.sampled_from([DType.FLOAT32, DType.BFLOAT16]), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_images_never_overlap_and_lie_on_blocks(drawn, pulled, num_devices, num_folders, chunk):
    model = model_of(drawn, pulled=pulled, num_devices=num_devices, chunk_elements=chunk * ALIGN_ELEMENTS)
    seen = set()
    for device in range(num_devices):
        layout = DiskLayout(model, device, num_folders)
        for folder in range(num_folders):
            spans = []
            for unit, number in layout.chunks():
                for slot in range(NUM_SLOTS):
                    place = layout.place(unit, number, slot)
                    if place.folder == folder:
                        spans.append((place.offset, place.offset + model.image(unit, number).nbytes))
            spans.sort()
            assert all(begin % BLOCK_BYTES == end % BLOCK_BYTES == 0 for begin, end in spans)
            assert all(one[1] <= other[0] for one, other in pairwise(spans))
            assert layout.file_bytes[folder] == sum(end - begin for begin, end in spans)
        seen |= {unit for unit, _ in layout.chunks()}
    assert seen == set(range(len(drawn)))


@settings(max_examples=60, deadline=None)
@given(units, st.integers(1, 4))
def test_pieces_cover_each_tensor_once_and_begin_at_multiples_of_64(drawn, chunk):
    model = model_of(drawn, chunk_elements=chunk * ALIGN_ELEMENTS)
    for unit, of in enumerate(model.units):
        covered = [0] * len(of.tensors)
        for number in range(model.num_chunks(unit)):
            for piece in model.pieces(unit, number):
                assert piece.first == covered[piece.tensor]
                assert piece.first % ALIGN_ELEMENTS == piece.begin % ALIGN_ELEMENTS == 0
                covered[piece.tensor] += piece.end - piece.begin
        assert covered == [tensor.num_elements for tensor in of.tensors]


def test_a_model_is_read_back_from_json_and_told_from_others_by_its_digest():
    model = model_of([[((3, 4), True), ((), False)], [((70,), True)]], pulled=DType.BFLOAT16, num_devices=2)
    again = PagedModel.from_json(json.loads(json.dumps(model.to_json())))
    assert again == model
    assert again.digest == model.digest
    assert model_of([[((3, 4), True), ((), True)], [((70,), True)]]).digest != model.digest


def test_bytes_of_a_step_are_those_of_the_formula():
    """Float32: 2 x 4 for pulls, 12 to read and 12 to write for an update; bfloat16: 2 x 2, 12 and 14 (LuWu 2.1)."""
    numel = 1 << 22
    for pulled, pull_bytes, written_bytes in ((DType.FLOAT32, 4, 12), (DType.BFLOAT16, 2, 14)):
        model = model_of([[((numel,), True)]], pulled=pulled)
        planned = step_bytes(model, 0)
        assert planned.read == pytest.approx(numel * (2 * pull_bytes + 12), rel=0.01)
        assert planned.written == pytest.approx(numel * written_bytes, rel=0.01)
        on_disk = step_bytes(model, 0, num_passes=3, sums_on_disk=[0])
        assert on_disk.read == pytest.approx(numel * (6 * pull_bytes + 12 + 3 * 4), rel=0.01)
        assert on_disk.written == pytest.approx(numel * (written_bytes + 3 * 4), rel=0.01)


def test_units_go_to_the_device_with_the_fewest_bytes():
    model = model_of([[((65_536 * k,), True)] for k in (5, 1, 1, 3, 2)], num_devices=2)
    assert model.device_of == (0, 1, 1, 1, 0)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"chunk_elements": 100}, "multiple of 64, got 100"),
    ],
)
def test_what_cannot_be_is_refused(options, what):
    with pytest.raises(ConfigError, match=what):
        model_of([[((1,), True)]], **options)


def test_a_name_that_comes_twice_is_refused():
    with pytest.raises(ConfigError, match="'a' comes twice"):
        PagedModel(units=(PagedUnit("u", (PagedTensor("a", (1,)), PagedTensor("a", (2,)))),))
