"""The file behind a memory device: where the table puts it, or an error that names file, line, rank and place."""

import os
from dataclasses import replace

import pytest

from coarse.errors import CapacityError, ConfigError
from coarse.protocol.partition import RankPlace, Role
from coarse.protocol.place import Anywhere, DaxDevice, ExistingFile, Folder, MemoryPlace, NumaNode
from coarse.storage import device_file, existing_file
from coarse.storage import region as memory
from coarse.storage.device_file import open_device_file
from coarse.storage.room import total_bytes

MIB = 1 << 20


def devices(*memories: MemoryPlace) -> list[RankPlace]:
    """A worker, and a memory device in each place."""
    worker = RankPlace(rank=0, roles=Role.WORKER, node="a")
    return [worker] + [
        RankPlace(rank=rank, roles=Role.MEMORY_DEVICE, node="a", memory=place, memory_said_at=f"p.toml:{rank}")
        for rank, place in enumerate(memories, start=1)
    ]


def test_a_device_without_a_place_is_shared_memory_of_the_machine():
    file = open_device_file(1, devices(Anywhere()), "coarse-test", None)
    assert os.readlink(f"/proc/self/fd/{file.descriptor}") == "/memfd:coarse-test (deleted)"
    assert file.capacity_bytes == total_bytes()
    assert file.source.name == "the machine"
    os.close(file.descriptor)


def test_a_device_in_a_folder_is_a_file_of_its_file_system(tmp_path):
    file = open_device_file(2, devices(Anywhere(), Folder(str(tmp_path))), "coarse-test", MIB)
    assert os.fstat(file.descriptor).st_dev == tmp_path.stat().st_dev
    os.close(file.descriptor)


def test_a_device_in_an_existing_file_has_the_range_that_the_table_states(tmp_path):
    (tmp_path / "pool").write_bytes(bytes(MIB))
    place = ExistingFile(str(tmp_path / "pool"), 4096, 8192)
    file = open_device_file(1, devices(place), "coarse-test", None)
    assert (file.begin_bytes, file.capacity_bytes) == (4096, 8192)
    os.close(file.descriptor)


def test_a_file_that_hosts_share_may_not_be_in_use_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "pool").write_bytes(bytes(MIB))
    monkeypatch.setattr(existing_file, "file_system_type", lambda _: "famfs")
    here = devices(ExistingFile(str(tmp_path / "pool")))
    elsewhere = [replace(here[1], rank=2, node="b")]
    with pytest.raises(ConfigError, match=r"^p\.toml:1: memory of rank 1 is 'file:.*': rank 2 on b has bytes of it"):
        open_device_file(1, here, "coarse-test", None, elsewhere)


def test_all_that_share_the_machine_count_against_it_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 2 * MIB)
    places = devices(Anywhere(), NumaNode(0), Folder(str(tmp_path)), DaxDevice("/dev/absent"))
    os.close(open_device_file(1, places, "coarse-test", MIB).descriptor)
    with pytest.raises(CapacityError, match=r"^2 memory devices of .* bytes do not fit: this machine has"):
        open_device_file(1, places, "coarse-test", MIB + 1)


def test_the_devices_that_share_a_place_are_counted(monkeypatch):
    counted = []
    monkeypatch.setattr(device_file, "create_on_node", lambda *arguments: counted.append(arguments))
    open_device_file(2, devices(NumaNode(1), NumaNode(0), NumaNode(1), NumaNode(0)), "coarse-test", MIB)
    assert counted == [(0, "coarse-test", MIB, 2)]


@pytest.mark.parametrize(
    ("place", "kind", "words"),
    [
        (NumaNode(977), ConfigError, "no NUMA node 977 with memory"),
        (DaxDevice("/dev/dax77.0"), ConfigError, "no such device"),
        (DaxDevice("/dev/null"), ConfigError, "no devdax device"),
        (ExistingFile("/absent"), ConfigError, "no such file"),
        (ExistingFile("/dev"), ConfigError, "this is a folder"),
        (ExistingFile(__file__), CapacityError, "no unit of|are wanted"),
        (Folder("/absent"), ConfigError, "no such folder"),
        (Folder("/dev/shm"), CapacityError, "do not fit"),
    ],
)
def test_what_cannot_be_names_file_line_rank_and_place(place, kind, words):
    wanted = 1 << 59 if kind is CapacityError else MIB
    with pytest.raises(kind, match=rf"^p\.toml:1: memory of rank 1 is '{place}': .*{words}"):
        open_device_file(1, devices(place), "coarse-test", wanted)
