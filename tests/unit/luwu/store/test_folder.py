"""A folder's files: torn, full, locked, another model's."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coarse.errors import CapacityError, StorageError
from coarse.luwu.store.commit import Commit, Manifest, UnitVersion, decode_commit, decode_manifest, newest_first
from coarse.luwu.store.folder import PagedFolder, aligned, require_fitting
from coarse.luwu.store.image import Image, Stamp
from coarse.luwu.store.layout import BLOCK_BYTES, ChunkImage
from coarse.luwu.store.queues import FolderQueues, Priority
from coarse.protocol.dtypes import DType
from coarse.storage.checksums import best_checksum, checksum_named
from tests.unit.luwu.store.memory_disk import MemoryDisk

COMMIT = Commit(
    sequence=3, run="r", step=7, units=(UnitVersion(1, 7, (7, 5)), UnitVersion(0, 0, (0,))),
    workers=(b"\x00state", b""),
)  # fmt: skip
MANIFEST = Manifest(
    run="r", digest="d" * 64, device=0, num_devices=1, folder=0, num_folders=1, optimizer="AdamW", kernel="numpy",
    checksum="crc32", owner="me",
)  # fmt: skip


def test_a_commit_is_read_back_and_is_none_where_any_byte_is_another():
    raw = COMMIT.encode()
    assert decode_commit(raw) == COMMIT
    assert decode_commit(raw + b"older bytes behind it") == COMMIT
    for place in range(len(raw)):
        torn = bytearray(raw)
        torn[place] ^= 1
        assert decode_commit(bytes(torn)) is None
    assert all(decode_commit(raw[:length]) is None for length in range(len(raw)))


@given(st.binary(max_size=200))
def test_no_bytes_are_taken_for_a_commit_or_end_in_another_error(raw):
    assert decode_commit(raw) is None
    with pytest.raises(StorageError):
        decode_manifest(raw, "there")


def test_the_newest_whole_record_counts_and_goes_to_the_older_ones_file():
    newer = replace(COMMIT, sequence=4, step=8)
    assert newest_first([COMMIT.encode(), newer.encode()]) == [newer, COMMIT]
    assert newest_first([COMMIT.encode(), newer.encode()[:-1]]) == [COMMIT]
    assert newest_first([b"", b""]) == []
    assert COMMIT.file != newer.file


def test_a_manifest_is_read_back_and_refused_where_it_was_changed():
    raw = MANIFEST.encode()
    assert decode_manifest(raw, "there") == MANIFEST
    with pytest.raises(StorageError, match="there: the manifest was changed"):
        decode_manifest(raw.replace(b"AdamW", b"AdamX"), "there")
    with pytest.raises(StorageError, match="wanted the manifest of optimizer states, got another file"):
        decode_manifest(b'{"format": "something"}', "there")


def test_folders_of_another_model_run_kernel_or_order_are_refused():
    here = [Path("/a"), Path("/b")]
    wanted = [replace(MANIFEST, num_folders=2), replace(MANIFEST, folder=1, num_folders=2)]
    require_fitting(wanted, wanted, here)
    for other, what in (
        ([None, wanted[1]], "/a holds no optimizer states, and resume=True was given"),
        ([replace(wanted[0], digest="e" * 64), wanted[1]], r"another model's states \(AdamW, model eeeeeeee\)"),
        ([wanted[1], wanted[0]], "folder 1 of 2 .* is named as folder 0 of 2"),
        ([replace(wanted[0], kernel="torch"), wanted[1]], "by the kernel torch, and this is numpy.*other_kernel"),
        ([replace(wanted[0], run="s"), wanted[1]], "of several runs"),
    ):
        with pytest.raises(StorageError, match=what):
            require_fitting(other, wanted, here)


def test_files_are_there_for_good_and_direct_where_the_disk_can(tmp_path):
    folder = PagedFolder(tmp_path / "new" / "one")
    folder.open_files(4 * BLOCK_BYTES, BLOCK_BYTES)
    written = aligned(BLOCK_BYTES)
    written[:] = np.arange(BLOCK_BYTES) % 251
    folder.write("slots", written, 2 * BLOCK_BYTES)
    folder.sync()
    read = aligned(BLOCK_BYTES)
    folder.read("slots", read, 2 * BLOCK_BYTES)
    np.testing.assert_array_equal(read, written)
    assert os.stat(tmp_path / "new" / "one" / "slots").st_blocks * 512 >= 4 * BLOCK_BYTES
    folder.write_manifest(MANIFEST)
    folder.write_commit(COMMIT)
    folder.close()
    again = PagedFolder(tmp_path / "new" / "one")
    assert again.manifest() == MANIFEST
    assert again.commits()[0] == COMMIT
    again.close()


def test_a_step_that_a_training_goes_back_to_is_the_newest_from_then_on(tmp_path):
    newer = replace(COMMIT, sequence=COMMIT.sequence + 1, step=COMMIT.step + 1)
    folder = PagedFolder(tmp_path)
    folder.write_commit(COMMIT)
    folder.write_commit(newer)
    folder.void_newer(newer)
    assert folder.commits() == [newer, COMMIT]
    folder.void_newer(COMMIT)
    assert folder.commits() == [COMMIT]
    folder.close()
    again = PagedFolder(tmp_path)
    assert again.commits() == [COMMIT]
    again.write_commit(newer)
    assert again.commits() == [newer, COMMIT]
    again.close()


def test_a_folder_is_one_processs_at_a_time(tmp_path):
    folder = PagedFolder(tmp_path)
    with pytest.raises(StorageError, match=rf"{tmp_path} is in use by process {os.getpid()} of .*; wait until it has"):
        PagedFolder(tmp_path)
    folder.close()
    PagedFolder(tmp_path).close()


def test_a_full_disk_is_named_before_anything_is_written():
    disk = MemoryDisk()
    disk.is_full_beyond = 10 * BLOCK_BYTES
    folder = PagedFolder(Path("/a"), disk)
    with pytest.raises(CapacityError, match="/a needs 49152 bytes for slots and its disk has 40960 left; make room"):
        folder.open_files(12 * BLOCK_BYTES, 0)


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=re.escape(f"{tmp_path}/file/below cannot be made and locked")):
        PagedFolder(tmp_path / "file" / "below")


def test_another_machines_disk_is_refused():
    class RemoteDisk(MemoryDisk):
        def kind(self, path):
            return "nfs4"

    with pytest.raises(StorageError, match="of a nfs4 file system, whose disk is another machine's"):
        PagedFolder(Path("/a"), RemoteDisk())


def test_a_disk_without_direct_access_is_used_as_it_is():
    disk = MemoryDisk()
    disk.is_direct = False
    folder = PagedFolder(Path("/a"), disk)
    folder.open_files(BLOCK_BYTES, 0)
    assert not folder.is_direct


@pytest.mark.parametrize("pulled", [DType.FLOAT32, DType.BFLOAT16])
def test_a_chunk_that_is_not_the_one_that_was_sealed_is_told(pulled):
    layout = ChunkImage(100 * 64, pulled, 2)
    image = Image(layout, aligned(layout.nbytes))
    image.master[:] = np.linspace(-1, 1, layout.num_elements)
    image.states[1][:] = 2.0
    image.refresh_pulled()
    for name in {best_checksum(), "crc32"}:
        checksum = checksum_named(name)
        stamp = Stamp(3, 4, 5)
        image.seal(stamp, checksum)
        image.check(stamp, checksum, "here", pulled=True, states=True)
        for other, what in ((Stamp(3, 4, 6), "of step 5"), (Stamp(2, 4, 5), "chunk 4 of unit 3")):
            with pytest.raises(StorageError, match=f"here: wanted chunk {other.chunk} of unit {other.unit}.*{what}"):
                image.check(other, checksum, "here", pulled=True, states=True)
        for place, what in ((0, "parameters"), (layout.header + 8, "no header"), (layout.pull_nbytes + 9, "states")):
            image.bytes[place] ^= 1
            with pytest.raises(StorageError, match=what):
                image.check(stamp, checksum, "here", pulled=True, states=True)
            image.bytes[place] ^= 1


def test_reads_of_parameters_go_before_reads_of_states_and_those_before_writes():
    queues: FolderQueues[str] = FolderQueues(depth=2)
    queues.put(Priority.WRITE_STATES, "w0")
    queues.put(Priority.WRITE_STATES, "w1")
    queues.put(Priority.WRITE_STATES, "w2")
    assert queues.start() == ["w0", "w1"]
    queues.put(Priority.READ_STATES, "s")
    queues.put(Priority.READ_PARAMETERS, "p0")
    queues.put(Priority.READ_PARAMETERS, "p1")
    assert queues.start() == []
    order = []
    while not queues.is_idle:
        queues.end()
        order += queues.start()
    assert order == ["p0", "p1", "s", "w2"]


def test_a_folder_of_the_systems_is_one_jobs_until_it_is_closed(tmp_path):
    first = PagedFolder(tmp_path)
    with pytest.raises(StorageError, match=re.escape(f"{tmp_path} is in use by process {os.getpid()} of ")):
        PagedFolder(tmp_path)
    first.close()
    PagedFolder(tmp_path).close()


def test_files_that_were_made_have_their_names_on_the_disk_before_they_are_written_to():
    disk = MemoryDisk()
    folder = PagedFolder(Path("/disk"), disk)
    folder.open_files(BLOCK_BYTES, BLOCK_BYTES)
    assert disk.log[-1] == ("sync_folder", "disk")
