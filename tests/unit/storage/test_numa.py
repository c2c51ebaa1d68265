"""NUMA nodes as the kernel tells of them, and memory files whose pages come from one."""

import ctypes
import mmap
import os

import pytest

from coarse.errors import CapacityError, ConfigError
from coarse.storage import numa
from coarse.storage.numa import NumaSource, create_on_node, memory_node, memory_nodes, require_node
from coarse.storage.room import available_bytes

MIB = 1 << 20


@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    """A machine whose node 0 has processors and whose node 2, as CXL memory does, has none; node 1 has no memory."""
    system = tmp_path / "node"
    for number, (cpus, free_mib, cached_mib) in {0: ("0-3", 700, 200), 2: ("", 900, 0)}.items():
        folder = system / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
        half_kib = cached_mib * 512
        kib = {"MemTotal": 1 << 20, "MemFree": free_mib << 10, "Active(file)": half_kib, "Inactive(file)": half_kib}
        (folder / "meminfo").write_text("".join(f"Node {number} {key}:  {value} kB\n" for key, value in kib.items()))
    (system / "online").write_text("0-2\n")
    (system / "has_memory").write_text("0,2\n")
    (tmp_path / "zoneinfo").write_text(
        "Node 0, zone      DMA\n  per-node stats\n      nr_inactive_anon 3\n        high     256\n    high:  9999\n"
        "Node 0, zone   Normal\n        min      9999\n        high     2304\n"
        "Node 2, zone  Movable\n        high     0\n"
    )
    (tmp_path / "status").write_text("Name:\tx\nMems_allowed:\t1\nMems_allowed_list:\t0,2\n")
    monkeypatch.setattr(numa, "_NODES", system)
    monkeypatch.setattr(numa, "_ZONES", tmp_path / "zoneinfo")
    monkeypatch.setattr(numa, "_STATUS", tmp_path / "status")
    return tmp_path


def test_nodes_with_memory_are_told_with_their_processors(two_nodes):
    assert [(node.number, node.processors) for node in memory_nodes()] == [(0, "0-3"), (2, "")]
    assert str(memory_nodes()[1]) == "2: 900 MiB free of 1024 MiB, no processors"


def test_a_node_has_room_for_what_is_free_above_the_reserve_and_for_most_of_its_cached_files(two_nodes):
    node = memory_node(0)
    assert node is not None
    assert node.room_bytes == (700 - 10 + 200 - 10) * MIB  # the reserve is 2560 pages
    assert node.total_bytes == 1024 * MIB


def test_an_absent_node_is_refused_with_those_there_are(two_nodes):
    assert require_node(2).number == 2
    for number in (1, 7):
        with pytest.raises(ConfigError, match=rf"no NUMA node {number} with memory \(with memory: 0, 2\); name one"):
            require_node(number)


def test_a_node_outside_the_cpuset_is_refused_with_what_is_allowed(two_nodes):
    (two_nodes / "status").write_text("Mems_allowed_list:\t0-1\n")
    with pytest.raises(ConfigError, match=r"NUMA nodes 0-1 alone.*node 2"):
        require_node(2)


def test_a_kernel_without_numa_nodes_is_named_as_such(two_nodes, monkeypatch):
    monkeypatch.setattr(numa, "_NODES", two_nodes / "absent")
    assert memory_nodes() == []
    assert NumaSource(0).room_bytes() == 0
    with pytest.raises(ConfigError, match=r"no NUMA node 0 with memory \(with memory: none\)"):
        require_node(0)


def test_devices_larger_together_than_their_node_are_refused(two_nodes, monkeypatch):
    monkeypatch.setattr(numa, "bind", lambda *_: None)
    os.close(create_on_node(2, "test", 450 * MIB, 2).descriptor)
    with pytest.raises(CapacityError, match=rf"^2 memory devices of {451 * MIB} .*NUMA node 2 has {900 * MIB} bytes"):
        create_on_node(2, "test", 451 * MIB, 2)


def test_without_a_wanted_capacity_a_device_may_grow_to_all_of_its_node(two_nodes, monkeypatch):
    monkeypatch.setattr(numa, "bind", lambda *_: None)
    file = create_on_node(2, "test", None, 5)
    assert file.capacity_bytes == 1024 * MIB
    assert file.source.name == "NUMA node 2"
    os.close(file.descriptor)


def test_a_call_that_the_kernel_refuses_is_told_with_what_to_allow(two_nodes):
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, MIB)
    with pytest.raises(ConfigError, match=r"mbind: Invalid argument.*SYS_NICE"):
        numa.bind(descriptor, MIB, 1023)
    os.close(descriptor)


# --- this machine


def test_no_node_of_this_machine_has_more_room_than_memory():
    nodes = memory_nodes()
    if not nodes:
        pytest.skip("this kernel knows no NUMA nodes")
    assert all(0 <= node.room_bytes <= node.total_bytes for node in nodes)
    room_bytes = NumaSource(nodes[0].number).room_bytes()
    assert room_bytes <= min(available_bytes(), nodes[0].total_bytes)


def test_a_bound_file_keeps_its_policy_for_every_mapping():
    node = next((node.number for node in memory_nodes()), 0)
    try:
        file = create_on_node(node, "coarse-test-numa", MIB, 1)
    except ConfigError as refused:
        pytest.skip(str(refused))
    assert policy_of(file.descriptor, MIB) == (2, {node})  # MPOL_BIND
    os.close(file.descriptor)
    unbound = os.memfd_create("test")
    os.ftruncate(unbound, MIB)
    assert policy_of(unbound, MIB) == (0, set())  # MPOL_DEFAULT
    os.close(unbound)


def policy_of(descriptor: int, nbytes: int) -> tuple[int, set[int]]:
    """What get_mempolicy(2) says of a fresh mapping: the mode and its nodes."""
    mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    with mmap.mmap(descriptor, nbytes) as mapping:
        first = ctypes.c_char.from_buffer(mapping)
        address = ctypes.c_ulong(ctypes.addressof(first))
        number, of_address = ctypes.c_long(239), ctypes.c_ulong(2)
        result = ctypes.CDLL(None).syscall(number, ctypes.byref(mode), mask, ctypes.c_ulong(1024), address, of_address)
        del first
    assert result == 0
    return mode.value, {node for node in range(1024) if mask[node // 64] >> node % 64 & 1}
