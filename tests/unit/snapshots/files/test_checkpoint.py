"""At any moment of writing, the old checkpoint or the new one is whole."""

import os
import sys

import numpy as np
import pytest

from coarse.errors import SnapshotError
from coarse.protocol.dtypes import DType
from coarse.snapshots.files.checkpoint import (
    begin_checkpoint,
    commit_checkpoint,
    discard_checkpoint,
    replaced_folder,
    write_checkpoint,
    write_part,
)
from coarse.snapshots.files.filesystem import FileSystem
from coarse.snapshots.files.pieces import TensorPiece, whole_tensor
from coarse.snapshots.files.restore import read_checkpoint
from tests.unit.snapshots.files.failing_files import FailingFileSystem


def parts(value):
    """Two writers; the tensor `cut` is kept in three shards by both."""
    cut = np.arange(30, dtype=np.float32) + value
    shards = [
        TensorPiece(
            name="cut", dtype=DType.FLOAT32, shape=(5, 6), data=cut[first : first + 10], first=first
        )
        for first in (0, 10, 20)
    ]
    weight = whole_tensor("model/layer.weight", np.full((3, 2), value, np.uint16), DType.BFLOAT16)
    step = whole_tensor("optimizer/0/step", np.array(float(value)), DType.FLOAT64)
    return [[shards[0], weight, shards[2]], [shards[1], step]]


def write(folder, value, fs=None):
    write_checkpoint(
        folder,
        step=value,
        metadata={"value": value},
        parts=parts(value),
        fs=fs or FailingFileSystem(),
    )


def value_in(folder):
    """The number that the whole checkpoint was written with; fails on any mix."""
    found = read_checkpoint(folder)
    value = found.step
    assert found.metadata == {"value": value}
    assert set(found.tensors) == {"cut", "model/layer.weight", "optimizer/0/step"}
    cut = np.arange(30, dtype=np.float32).reshape(5, 6) + value
    np.testing.assert_array_equal(found.tensors["cut"].array, cut)
    np.testing.assert_array_equal(found.tensors["model/layer.weight"].array, np.full((3, 2), value))
    np.testing.assert_array_equal(found.tensors["optimizer/0/step"].array, value)
    return value


def failure_of(folder, value, fs):
    """What the write failed with; None where it went well."""
    try:
        write(folder, value, fs)
    except SnapshotError as error:
        return str(error)
    return None


def num_operations(folder):
    write(folder, 1)
    fs = FailingFileSystem()
    write(folder, 2, fs)
    return len(fs.log)


@pytest.mark.filterwarnings("ignore:.*could not be removed")
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("how", ["no effect", "after_effect", "torn"])
def test_whichever_operation_fails_the_old_or_the_new_checkpoint_is_whole(tmp_path, for_good, how):
    flags = {} if how == "no effect" else {how: True}
    for fail_at in range(num_operations(tmp_path / "count")):
        folder = tmp_path / f"{fail_at:03d}"
        write(folder, 1)
        fs = FailingFileSystem(fail_at, for_good=for_good, **flags)
        failure = failure_of(folder, 2, fs)
        assert value_in(folder) in ((1, 2) if failure else (2,))
        assert failure is None or "Input/output error" in failure
        write(folder, 3)
        assert value_in(folder) == 3
        assert [name for name in os.listdir(tmp_path) if folder.name in name] == [folder.name]


@pytest.mark.filterwarnings("ignore:.*could not be removed")
def test_a_write_that_dies_after_a_crash_loses_nothing_either(tmp_path):
    for fail_first in range(num_operations(tmp_path / "count")):
        for fail_second in range(fail_first % 3, 12, 3):
            folder = tmp_path / f"{fail_first}-{fail_second}"
            write(folder, 1)
            for value, fail_at in ((2, fail_first), (3, fail_second)):
                before = value_in(folder)
                failure = failure_of(folder, value, FailingFileSystem(fail_at, for_good=True))
                assert value_in(folder) in ((before, value) if failure else (value,))


def test_after_a_failure_that_passes_the_old_checkpoint_has_its_name_and_nothing_lies_around(
    tmp_path,
):
    folder = tmp_path / "ckpt"
    write(folder, 1)
    fs = FailingFileSystem()
    write(folder, 1, fs)
    (last_rename,) = [
        n for n, (name, path) in enumerate(fs.log) if name == "rename" and ".tmp-" in path
    ]
    with pytest.raises(SnapshotError):
        write(folder, 2, FailingFileSystem(last_rename))
    assert (value_in(folder), os.listdir(tmp_path)) == (1, ["ckpt"])


def test_every_file_is_on_the_disk_before_it_has_its_name_and_the_manifest_is_last(tmp_path):
    fs = FailingFileSystem()
    write(tmp_path / "ckpt", 1, fs)
    log = [(name, path.split(".tmp-")[0]) for name, path in fs.log if name in ("sync", "rename")]
    steps = [("sync", "{0}.tmp"), ("rename", "{0}.tmp"), ("sync", "ckpt")]
    files = ("part-0000.safetensors", "part-0001.safetensors", "manifest.json")
    wanted = [(name, path.format(file)) for file in files for name, path in steps]
    assert log == [*wanted, ("rename", "ckpt"), ("sync", tmp_path.name)]


def test_nobody_but_the_checkpoint_is_left_and_all_may_read_it(tmp_path):
    folder = tmp_path / "new" / "ckpt"
    write(folder, 1)
    assert os.listdir(folder.parent) == ["ckpt"]
    assert {file.stat().st_mode for file in folder.iterdir()} == {
        (folder / "manifest.json").stat().st_mode
    }


def test_a_crash_between_the_renames_is_read_and_then_put_right(tmp_path):
    folder = tmp_path / "ckpt"
    write(folder, 1)
    folder.rename(replaced_folder(folder))
    (tmp_path / "ckpt.tmp-0123abcd").mkdir()
    (tmp_path / "ckpt.tmp-0123abcd" / "part-0000.safetensors.tmp").touch()
    assert value_in(folder) == 1
    discard_checkpoint(begin_checkpoint(folder))
    assert (value_in(folder), os.listdir(tmp_path)) == (1, ["ckpt"])


def test_the_neighbours_of_a_checkpoint_are_left_alone(tmp_path):
    for neighbour in ("ckpt.tmp-backups", "ckpt2.tmp-0123abcd", "ckpt.tmp", "ckpt.old"):
        (tmp_path / neighbour).mkdir()
    before = sorted(os.listdir(tmp_path))
    write(tmp_path / "ckpt", 1)
    write(tmp_path / "ckpt", 2)
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "ckpt"])


@pytest.mark.parametrize(
    ("name", "content"), [("thesis.tex", "text"), ("manifest.json", '{"name": "app"}')]
)
def test_a_folder_with_anything_else_in_it_is_never_replaced(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(SnapshotError, match=f"'{name}', which is none of a checkpoint's"):
        write(tmp_path, 1)
    assert (tmp_path / name).read_text() == content


def test_a_file_in_the_place_of_the_folder_is_never_replaced(tmp_path):
    (tmp_path / "ckpt").write_text("mine")
    with pytest.raises(SnapshotError, match="NotADirectoryError"):
        write(tmp_path / "ckpt", 1)
    assert (tmp_path / "ckpt").read_text() == "mine"


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "ckpt").symlink_to(tmp_path / "disk")
    write(tmp_path / "ckpt", 1)
    write(tmp_path / "ckpt", 2)
    assert (tmp_path / "ckpt").is_symlink()
    assert value_in(tmp_path / "ckpt") == value_in(tmp_path / "disk") == 2


def test_a_part_that_the_committing_rank_cannot_see_is_named(tmp_path):
    staging = begin_checkpoint(tmp_path / "ckpt")
    entries = [write_part(staging, index, part) for index, part in enumerate(parts(1))]
    (staging / "part-0001.safetensors").unlink()
    with pytest.raises(SnapshotError, match=r"part-0001.*got no such file; .*all nodes share"):
        commit_checkpoint(staging, tmp_path / "ckpt", step=1, metadata={}, parts=entries)
    assert os.listdir(tmp_path) == []


def test_a_part_that_the_committing_rank_sees_cut_short_is_named_with_its_bytes(tmp_path):
    staging = begin_checkpoint(tmp_path / "ckpt")
    entries = [write_part(staging, index, part) for index, part in enumerate(parts(1))]
    os.truncate(staging / "part-0001.safetensors", 5)
    with pytest.raises(SnapshotError, match=rf"part-0001.*the {entries[1].nbytes} bytes .*got 5 bytes; "):
        commit_checkpoint(staging, tmp_path / "ckpt", step=1, metadata={}, parts=entries)


def test_missing_shards_are_found_before_the_old_checkpoint_goes(tmp_path):
    write(tmp_path / "ckpt", 1)
    with pytest.raises(SnapshotError, match=r"elements \[10, 20\) of 'cut' are missing"):
        write_checkpoint(tmp_path / "ckpt", step=2, metadata={}, parts=parts(2)[:1])
    assert (value_in(tmp_path / "ckpt"), os.listdir(tmp_path)) == (1, ["ckpt"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["__metadata__"], "cannot hold '__metadata__'"),
        (["w", "w"], "cannot hold 'w'"),
        (["\ud800"], "surrogates not allowed"),
    ],
)
def test_names_that_a_file_cannot_hold_are_refused(tmp_path, names, message):
    pieces = [whole_tensor(name, np.zeros(2, np.float32), DType.FLOAT32) for name in names]
    with pytest.raises(SnapshotError, match=message):
        write_checkpoint(tmp_path / "ckpt", step=1, metadata={}, parts=[pieces])
    assert os.listdir(tmp_path) == []


def test_metadata_is_checked_before_anything_is_written(tmp_path):
    fs = FailingFileSystem()
    with pytest.raises(SnapshotError, match="keys must be strings"):
        write_checkpoint(tmp_path / "ckpt", step=1, metadata={"a": {1: 2}}, parts=[], fs=fs)
    assert fs.log == []


def test_a_step_that_is_not_a_number_from_0_on_is_refused(tmp_path):
    with pytest.raises(SnapshotError, match="wanted a whole number from 0 on, got -1"):
        write_checkpoint(tmp_path / "ckpt", step=-1, metadata={}, parts=[])


def test_without_safetensors_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(SnapshotError, match=r"pip install 'coarse-cxl\[snapshot\]'"):
        write(tmp_path / "ckpt", 1)
    assert os.listdir(tmp_path) == []


def test_an_old_safetensors_names_the_extra_too(tmp_path, monkeypatch):
    monkeypatch.delattr("safetensors.TensorSpec")
    with pytest.raises(SnapshotError, match=r"safetensors, 0.8 or newer .*TensorSpec"):
        write(tmp_path / "ckpt", 1)


def test_a_full_disk_under_safetensors_is_an_oserror(tmp_path):
    with pytest.raises(OSError, match="gone"):
        FileSystem().write_tensors(tmp_path / "gone" / "x", [])
