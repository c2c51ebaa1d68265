"""Copies on disk: old or new whatever breaks, torn ones passed over, and nothing of another run's."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from coarse.errors import ConfigError, StorageError
from coarse.faults.memory import StateMemory, opened_at
from coarse.launch import disk_copies
from coarse.launch.disk_copies import DiskCopies
from coarse.launch.state_memory import HeldMemory
from coarse.protocol.place import Anywhere

WORKERS = 2


@pytest.fixture
def memory():
    with HeldMemory([Anywhere()] * WORKERS) as held:
        yield held


def commit(memory: HeldMemory, version: int, *, workers=range(WORKERS)) -> None:
    """Have workers record a version."""
    folder, _, numbers = memory.told.rpartition("/")
    paths = [f"{folder}/{number}" for number in numbers.split(",")]
    by_worker = [tuple(paths[i : i + 2]) for i in range(0, len(paths), 2)]
    for worker in workers:
        kept = StateMemory(opened_at(by_worker), worker)
        slot = kept.slot(version)
        data = slot.begin(1000, 2)
        data[:] = version * 16 + worker
        slot.record(version, b"{}", np.array([slot.checksum(data)], np.uint32))
        kept.close()


def found_in(folder: Path) -> int:
    """The version that a new job goes on from; what each worker has is its."""
    with HeldMemory([Anywhere()] * WORKERS) as other:
        version, _ = DiskCopies(folder).read(other, WORKERS)
        assert other.versions() == (version,) * WORKERS
        for worker, descriptor in enumerate(other.slots_of(version)):
            assert os.pread(descriptor, 1, 4096 + 500)[0] == version * 16 + worker
        return version


def test_the_newest_version_of_all_is_written_and_older_ones_go(memory, tmp_path):
    copies = DiskCopies(tmp_path / "kept")
    copies.make()
    assert copies.write(memory) == 0
    commit(memory, 1)
    assert copies.write(memory) == 1
    commit(memory, 2)
    commit(memory, 3, workers=[0])
    assert copies.write(memory) == 2
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["version-0000000002"]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    assert found_in(tmp_path / "kept") == 2


@pytest.mark.parametrize("name", ["mkdir", "open", "fsync", "replace", "pread"])
@pytest.mark.parametrize("at", range(1, 5))
def test_whatever_operation_fails_the_old_copy_or_the_new_one_is_there(memory, tmp_path, monkeypatch, name, at):
    copies = DiskCopies(tmp_path)
    commit(memory, 1)
    copies.write(memory)
    commit(memory, 2)
    count = 0

    def failing(real):
        def call(*args, **options):
            nonlocal count
            count += 1
            if count == at:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **options)

        return call

    owner = Path if name in ("mkdir", "open", "replace") else disk_copies.os
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing(getattr(owner, name)))
        with suppress(OSError):
            copies.write(memory)
    assert found_in(tmp_path) in (1, 2)
    assert copies.write(memory) == 2
    assert found_in(tmp_path) == 2


@pytest.mark.parametrize("how", ["a byte", "a length", "a file"])
def test_a_torn_copy_is_passed_over_for_the_one_before(memory, tmp_path, how):
    commit(memory, 1)
    DiskCopies(tmp_path).write(memory)
    commit(memory, 2)
    copies = DiskCopies(tmp_path / "elsewhere")
    copies.make()
    copies.write(memory)
    torn = (tmp_path / "elsewhere" / "version-0000000002").rename(tmp_path / "version-0000000002") / "worker-1"
    if how == "a byte":
        with torn.open("r+b") as file:
            file.seek(4200)
            file.write(b"\xff")
    elif how == "a length":
        os.truncate(torn, 4500)
    else:
        torn.unlink()
    with HeldMemory([Anywhere()] * WORKERS) as other:
        version, wrong = DiskCopies(tmp_path).read(other, WORKERS)
    assert version == 1
    assert len(wrong) == 1
    assert "version-0000000002" in wrong[0]


def test_no_copy_is_an_error_with_the_remedy(memory, tmp_path):
    with pytest.raises(StorageError, match="no copy at all; begin without --resume"):
        DiskCopies(tmp_path / "none").read(memory, WORKERS)
    assert not (tmp_path / "none").exists()
    commit(memory, 1)
    DiskCopies(tmp_path).write(memory)
    with pytest.raises(StorageError, match="has states of 2 workers, and the job has 3"):
        DiskCopies(tmp_path).read(memory, 3)


def test_copies_of_another_run_are_not_mixed_with(memory, tmp_path):
    commit(memory, 1)
    DiskCopies(tmp_path).write(memory)
    with pytest.raises(ConfigError, match=r"has version-0000000001 of another run; go on from it by --resume"):
        DiskCopies(tmp_path).make()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        DiskCopies(tmp_path / "file" / "below").make()


def test_a_version_whose_bytes_have_changed_in_memory_does_not_replace_a_copy(memory, tmp_path):
    copies = DiskCopies(tmp_path)
    commit(memory, 1)
    assert copies.write(memory) == 1
    commit(memory, 2)
    os.pwrite(memory.slots_of(2)[1], b"\xff", 4200)
    assert copies.write(memory) == 1
    assert found_in(tmp_path) == 1
    commit(memory, 3)
    assert copies.write(memory) == 3


@pytest.mark.parametrize("has_room", [True, False])
def test_workers_wait_for_the_disk_only_where_memory_has_no_room(memory, tmp_path, monkeypatch, has_room):
    commit(memory, 1)
    monkeypatch.setattr(disk_copies, "available_bytes", lambda: 1 << (40 if has_room else 3))
    real, could_write = disk_copies._write_all, []

    def write_all(descriptors, folder):
        for slot in memory.slots_of(1):
            with open(f"/proc/self/fd/{slot}", "rb") as other:
                try:
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    could_write.append(True)
                except BlockingIOError:
                    could_write.append(False)
        real(descriptors, folder)

    monkeypatch.setattr(disk_copies, "_write_all", write_all)
    assert DiskCopies(tmp_path).write(memory) == 1
    assert could_write == [has_room] * WORKERS
    with HeldMemory([Anywhere()] * WORKERS) as other:
        assert DiskCopies(tmp_path).read(other, WORKERS) == (1, [])
