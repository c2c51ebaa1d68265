"""Device memory comes from this user's ranks alone, whoever else sends to their sockets."""

import os
import secrets
import socket

import pytest

from coarse.transport.node import receive_descriptor, send_descriptor, take_senders


@pytest.fixture
def line():
    """The socket of a rank, and another that sends to its address."""
    address = f"\0coarse-test-{secrets.token_hex(8)}"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as rank,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
    ):
        rank.settimeout(10)
        take_senders(rank)
        rank.bind(address)
        yield rank, other, address


@pytest.fixture
def file(tmp_path):
    descriptor = os.open(tmp_path / "memory", os.O_CREAT | os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def open_files() -> set[str]:
    """Descriptors that this process has open, by number."""
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("label", ["device 0 4096 8192", f"device 3 4096 0 0000:3b:00.0 1048576 {'0f' * 64}", "pool 2"])
def test_a_rank_s_descriptor_is_found_by_its_label(line, file, label):
    rank, other, address = line
    send_descriptor(other, address, label, file)
    found: dict[str, int] = {}
    receive_descriptor(rank, found)
    assert os.fstat(found[label]).st_ino == os.fstat(file).st_ino
    os.close(found[label])


@pytest.mark.parametrize(
    "label", ["", "device", "device 0", "device 0 x", "device 0 1", "device 0 1 2 3", "d" * 100, "\udcff",
     "device 0 1 2 0000:3b:00.0 8 0f", "device 0 1 2 gpu 8 " + "0f" * 64]
)
def test_what_no_rank_sends_is_dropped_and_its_descriptor_closed(line, file, label):
    rank, other, address = line
    said = label.encode(errors="surrogateescape")
    other.sendmsg([said], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, file.to_bytes(4, "little"))], 0, address)
    require_dropped(rank)


def test_a_datagram_without_a_descriptor_or_with_two_is_dropped(line, file):
    rank, other, address = line
    other.sendto(b"device 0 4096 8192", address)
    require_dropped(rank)
    two = file.to_bytes(4, "little") * 2
    other.sendmsg([b"device 0 4096 8192"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, two)], 0, address)
    require_dropped(rank)


def test_another_users_descriptor_is_no_memory(line, file, monkeypatch):
    rank, other, address = line
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    send_descriptor(other, address, "control", file)
    require_dropped(rank)


def test_a_label_counts_once(line, file):
    rank, other, address = line
    send_descriptor(other, address, "control", file)
    found = {"control": -7}
    before = open_files()
    receive_descriptor(rank, found)
    assert (found, open_files()) == ({"control": -7}, before)


def require_dropped(rank: socket.socket) -> None:
    """One datagram is taken and leaves nothing."""
    found: dict[str, int] = {}
    before = open_files()
    receive_descriptor(rank, found)
    assert (found, open_files()) == ({}, before)
