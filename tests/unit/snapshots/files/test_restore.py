"""What is read back is what was written, or a CheckpointError that names the file."""

import hashlib
import json
import os
import re
import shutil
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coarse.errors import CheckpointError
from coarse.protocol.dtypes import DType
from coarse.snapshots.files import manifest
from coarse.snapshots.files.checkpoint import replaced_folder, write_checkpoint
from coarse.snapshots.files.manifest import MANIFEST_FILE
from coarse.snapshots.files.pieces import TensorPiece, whole_tensor
from coarse.snapshots.files.restore import find_checkpoint, read_checkpoint, read_manifest, read_part
from tests.unit.snapshots.files.failing_files import FailingFileSystem


def write(folder, tensors):
    write_checkpoint(folder, step=7, metadata={"epoch": 2}, parts=[tensors])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("restore") / "ckpt"
    one = whole_tensor("model/w", np.arange(40, dtype=np.float32), DType.FLOAT32)
    two = whole_tensor("optimizer/0/exp_avg", np.arange(6, dtype=np.float64), DType.FLOAT64)
    write_checkpoint(folder, step=7, metadata={"epoch": 2}, parts=[[one], [two]])
    return folder


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (3, 5)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path, dtype, shape):
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    write(tmp_path / "ckpt", [whole_tensor("t", raw.view(dtype.storage).reshape(shape), dtype)])
    found = read_checkpoint(tmp_path / "ckpt").tensors["t"]
    assert (found.dtype, found.array.dtype, found.array.shape) == (dtype, dtype.storage, shape)
    assert found.array.tobytes() == raw.tobytes()


def test_strided_views_and_bare_bytes_are_written_as_their_elements(tmp_path):
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    transposed = whole_tensor("transposed", array.T, DType.INT32)
    region = TensorPiece(
        name="region", dtype=DType.INT32, shape=(4, 6), data=array.view(np.uint8).reshape(-1)
    )
    write(tmp_path / "ckpt", [transposed, region])
    found = read_checkpoint(tmp_path / "ckpt").tensors
    np.testing.assert_array_equal(found["transposed"].array, array.T)
    np.testing.assert_array_equal(found["region"].array, array)


@given(
    numel=st.integers(1, 40),
    cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=6),
)
@settings(max_examples=25, deadline=None)
def test_a_tensor_in_any_shards_on_any_writers_comes_back_whole(tmp_path_factory, numel, cuts):
    folder = tmp_path_factory.mktemp("shards") / "ckpt"
    array = np.arange(numel, dtype=np.int64)
    bounds = sorted({0, numel, *(cut % numel for cut, _ in cuts)})
    writers = [writer for _, writer in cuts] + [0] * len(bounds)
    parts: list[list[TensorPiece]] = [[], [], []]
    for first, last, writer in zip(bounds, bounds[1:], writers, strict=False):
        piece = TensorPiece(
            name="t", dtype=DType.INT64, shape=(numel,), data=array[first:last], first=first
        )
        parts[writer].append(piece)
    write_checkpoint(folder, step=0, metadata={}, parts=parts)
    np.testing.assert_array_equal(read_checkpoint(folder).tensors["t"].array, array)


def test_what_comes_back_may_be_written_to(written):
    for tensor in read_checkpoint(written).tensors.values():
        tensor.array[...] = 1


def test_step_and_metadata_come_back_and_a_part_can_be_read_alone(written):
    found = read_checkpoint(written)
    assert (found.step, found.metadata) == (7, {"epoch": 2})
    manifest = read_manifest(find_checkpoint(written))
    (piece,) = read_part(written, manifest.parts[1])
    assert (piece.name, piece.first, piece.numel) == ("optimizer/0/exp_avg", 0, 6)


def test_safetensors_itself_reads_our_parts(written):
    from safetensors.numpy import load_file

    np.testing.assert_array_equal(
        load_file(written / "part-0000.safetensors")["model/w"], np.arange(40)
    )


FILES = ("manifest.json", "part-0000.safetensors", "part-0001.safetensors")
DAMAGED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def damaged_copy(written, folder, file, change):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(written, folder)
    raw = bytearray((folder / file).read_bytes())
    (folder / file).write_bytes(change(raw))
    return folder


def assert_refused(folder, file):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    assert str(folder / file) in str(caught.value)
    assert re.search("wanted .* got .*;", str(caught.value), re.DOTALL)


@given(file=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@DAMAGED
def test_a_flipped_bit_anywhere_is_found_and_its_file_named(written, tmp_path, file, place, bit):
    def flip(raw):
        raw[int(place * len(raw))] ^= 1 << bit
        return raw

    assert_refused(damaged_copy(written, tmp_path / "ckpt", file, flip), file)


@given(file=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True))
@DAMAGED
def test_a_file_cut_anywhere_is_found_and_named(written, tmp_path, file, place):
    assert_refused(
        damaged_copy(written, tmp_path / "ckpt", file, lambda raw: raw[: int(place * len(raw))]),
        file,
    )


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("tail", [b"\0", b"more"])
def test_a_file_that_grew_is_found_and_named(written, tmp_path, file, tail):
    assert_refused(damaged_copy(written, tmp_path / "ckpt", file, lambda raw: raw + tail), file)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(written, tmp_path, file):
    shutil.copytree(written, tmp_path / "ckpt")
    (tmp_path / "ckpt" / file).unlink()
    assert_refused(tmp_path / "ckpt", file)


def test_a_part_of_another_checkpoint_is_found(written, tmp_path):
    write(tmp_path / "other", [whole_tensor("model/w", np.ones(40, np.float32), DType.FLOAT32)])
    shutil.copytree(written, tmp_path / "ckpt")
    shutil.copy(tmp_path / "other" / FILES[1], tmp_path / "ckpt" / FILES[1])
    assert (tmp_path / "ckpt" / FILES[1]).stat().st_size == (written / FILES[1]).stat().st_size
    assert_refused(tmp_path / "ckpt", FILES[1])


def test_a_part_whose_content_the_manifest_does_not_list_is_refused(written):
    first, second = read_manifest(written).parts
    mixed = type(first)(
        file=first.file, nbytes=first.nbytes, sha256=first.sha256, pieces=second.pieces
    )
    with pytest.raises(CheckpointError, match=r"part-0000\.safetensors: wanted the 1 pieces"):
        read_part(written, mixed)


@pytest.mark.parametrize(
    "make", [lambda path: None, os.mkdir, lambda path: path.write_text("text")]
)
def test_what_is_no_checkpoint_at_all_says_what_is_there(tmp_path, make):
    make(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"ckpt.*wanted .*got .*coarse\.snapshot"):
        read_checkpoint(tmp_path / "ckpt")


def test_a_damaged_checkpoint_is_not_passed_over_for_an_older_one(written, tmp_path):
    folder = damaged_copy(written, tmp_path / "ckpt", FILES[1], lambda raw: raw[:-1])
    shutil.copytree(written, replaced_folder(folder))
    assert_refused(folder, FILES[1])


def test_an_operation_that_fails_while_reading_is_a_checkpoint_error(written):
    fs = FailingFileSystem()
    read_checkpoint(written, fs)
    for fail_at in range(len(fs.log)):
        with pytest.raises(CheckpointError, match=r"wanted .*Input/output error"):
            read_checkpoint(written, FailingFileSystem(fail_at))


def test_without_safetensors_the_extra_is_named(written, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(CheckpointError, match=r"pip install 'coarse-cxl\[snapshot\]'"):
        read_checkpoint(written)


@pytest.mark.parametrize("file", ["manifest", "part"])
def test_a_link_to_a_file_without_an_end_is_an_error_and_takes_no_memory(written, tmp_path, file):
    folder = shutil.copytree(written, tmp_path / "ckpt")
    name = MANIFEST_FILE if file == "manifest" else read_manifest(folder).parts[0].file
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=re.escape(str(folder / name))):
        read_checkpoint(folder)


def test_a_manifest_without_parts_is_no_checkpoint(written, tmp_path):
    folder = shutil.copytree(written, tmp_path / "ckpt")
    body = json.loads((folder / MANIFEST_FILE).read_bytes())
    del body["sha256"]
    body["parts"] = []
    (folder / MANIFEST_FILE).write_bytes(manifest._encode({**body, "sha256": digest_of(body)}))
    with pytest.raises(CheckpointError, match="no parts"):
        read_checkpoint(folder)


def digest_of(body) -> str:
    return hashlib.sha256(manifest._encode(body)).hexdigest()
