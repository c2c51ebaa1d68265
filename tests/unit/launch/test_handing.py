"""Memory that the launcher holds, handed to ranks over a socket: slots of workers, and files by name."""

import os
import secrets
import socket

import pytest

from coarse.errors import StorageError
from coarse.faults.memory import handed_at
from coarse.launch.handing import DescriptorServer
from coarse.launch.state_memory import HeldMemory
from coarse.luwu.store.held import HeldDisk
from coarse.protocol.place import Anywhere
from coarse.transport.handed import ask_for_file, ask_for_slots, ask_to_move


@pytest.fixture(params=["a path", "no path"])
def served(request, tmp_path):
    """Memory of two workers, and where it is handed over."""
    address = str(tmp_path / "states") if request.param == "a path" else f"@test-{secrets.token_hex(8)}"
    with HeldMemory([Anywhere()] * 2) as memory, DescriptorServer(address, memory):
        yield memory, address


def same_file(one: int, other: int) -> bool:
    return os.path.samestat(os.fstat(one), os.fstat(other))


def test_a_worker_s_slots_are_those_of_the_launcher(served):
    memory, address = served
    for worker in (0, 1):
        slots = ask_for_slots(address, worker, 2)
        assert [same_file(*pair) for pair in zip(slots, memory.slots_of_worker(worker), strict=True)] == [True, True]
        for slot in slots:
            os.close(slot)
    one = handed_at(address)(1, 1)
    assert same_file(one, memory.slots_of_worker(1)[1])
    os.close(one)


def test_lost_memory_is_other_memory_and_empty(served):
    memory, address = served
    before = ask_for_slots(address, 1, 2)
    os.pwrite(before[0], b"states", 0)
    memory.lose([1])
    after = ask_for_slots(address, 1, 2)
    assert not any(same_file(*pair) for pair in zip(before, after, strict=True))
    assert os.fstat(after[0]).st_size == 0
    for descriptor in (*before, *after):
        os.close(descriptor)


def test_a_file_by_its_name_outlives_who_made_it(served):
    memory, address = served
    assert ask_for_file(address, "host/a", makes=False) is None
    made = ask_for_file(address, "host/a", makes=True)
    assert made is not None
    os.pwrite(made, b"kept", 0)
    os.close(made)
    ask_to_move(address, "host/a", "host/b")
    assert ask_for_file(address, "host/a", makes=False) is None
    found = ask_for_file(address, "host/b", makes=False)
    assert found is not None
    assert os.pread(found, 10, 0) == b"kept"
    os.close(found)
    memory.files.lose("host/")
    assert ask_for_file(address, "host/b", makes=False) is None


def test_what_nobody_has_or_asks_for_is_an_error(served):
    _, address = served
    with pytest.raises(StorageError, match=r"asked for 'slots 7'.* did not answer"):
        ask_for_slots(address, 7, 2)
    with pytest.raises(StorageError, match="asked for 'move none"):
        ask_to_move(address, "none", "other")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(10)
        channel.connect(address.replace("@", "\0", 1))
        channel.send(b"\xff\xfe")
        assert channel.recv(10) == b""
    assert len([os.close(each) for each in ask_for_slots(address, 0, 2)]) == 2  # it serves on
    with pytest.raises(StorageError, match="start the job again"):
        ask_for_slots(f"{address}-none", 0, 2)


def test_an_optimizer_node_s_files_are_there_for_its_next_process(served, tmp_path):
    _, address = served
    first, second = HeldDisk(address), HeldDisk(address)
    assert first.content(tmp_path / "manifest") is None
    descriptor = first.open(tmp_path / "manifest.new")
    os.pwrite(descriptor, b"a model", 0)
    first.close(descriptor)
    first.rename(tmp_path / "manifest.new", tmp_path / "manifest")
    assert second.content(tmp_path / "manifest") == b"a model"
    with pytest.raises(OSError, match="not direct"):
        second.open(tmp_path / "slots", is_direct=True)
