"""Parts of a node that its ranks share: device memories and the control segment.

Memory files have no name, so their descriptors travel over Unix sockets, rank by rank: a rank sends
only after it has received everything from the ranks before it, so that no socket's queue can fill
up with all waiting. The sockets' names are anybody's to send to, so a datagram counts only where the kernel says that a
process of this user sent it, and only with what ranks send: one descriptor under a label.
"""

import array
import contextlib
import mmap
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from coarse.errors import StallError
from coarse.storage.gpu_memory import map_memory, own_memory
from coarse.storage.region import DeviceMemory, MemoryFile, create_memory_file
from coarse.transport.device_transport import Carrier
from coarse.transport.mailbox import control_bytes
from coarse.transport.node_rendezvous import PEER


@dataclass(frozen=True, kw_only=True)
class NodeShare:
    """The mapped memory of a node, as one of its ranks sees it."""

    control: memoryview
    memories: dict[int, DeviceMemory]
    """Device index -> its memory."""
    process_ids: dict[int, int]
    """World rank -> process id, this node's ranks."""
    others: dict[str, int]
    """Label -> descriptor of other files that the ranks share; the opener of the node closes them."""
    carrier: Carrier | None = None
    """Carrier by which devices send, if that is not MPI."""


def open_node(
    comm: MPI.Comm,
    *,
    run: str,
    num_endpoints: int,
    own_files: Mapping[int, MemoryFile],
    others: Mapping[str, int],
    world_ranks: tuple[int, ...],
    timeout_s: float,
) -> NodeShare:
    """Exchange this rank's memory files (by device index), and `others`, with the node's ranks; map the memories.

    `comm` holds the ranks of one node, in order of `world_ranks`.

    Raises:
        CapacityError: this process may not map so much; on this rank alone.
        ConfigError: it does not see the GPU of a device; on this rank alone.
        GpuError: CUDA does not map a GPU's memory here; on this rank alone.
        StallError: a rank that has not handed on its files in time.
    """
    offers = {_label(device, file): file.descriptor for device, file in own_files.items()} | dict(others)
    if comm.Get_rank() == 0:
        offers["control"] = create_memory_file(f"coarse-{run}-control", control_bytes(num_endpoints))
    descriptors = _exchange(comm, run, offers, timeout_s)
    process_ids = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([os.getpid()], np.int64), process_ids)  # the last that ranks do together: mapping may fail
    control_file = descriptors.pop("control")
    control = mmap.mmap(control_file, control_bytes(num_endpoints))
    control.madvise(mmap.MADV_DONTFORK)
    os.close(control_file)
    memories = {}
    for label in list(descriptors):
        if label.startswith("device "):
            device = int(label.split()[1])
            memories[device] = _memory(label, descriptors.pop(label), own_files)
    return NodeShare(
        control=memoryview(control),
        memories=memories,
        process_ids=dict(zip(world_ranks, process_ids.tolist(), strict=True)),
        others=descriptors,
    )


def _label(device: int, file: MemoryFile) -> str:
    """Return the label that tells a node's ranks of a device's file."""
    of_file = f"device {device} {file.capacity_bytes} {file.begin_bytes}"
    return of_file if file.gpu is None else f"{of_file} {file.gpu.bus_id} {file.gpu.nbytes} {file.gpu.handle.hex()}"


def _memory(label: str, descriptor: int, own_files: Mapping[int, MemoryFile]) -> DeviceMemory:
    """Return the memory of a device, which a label describes."""
    device, capacity_bytes, begin_bytes, *of_gpu = label.split()[1:]
    own = own_files.get(int(device))
    if not of_gpu:
        return DeviceMemory(descriptor, int(capacity_bytes), own.source if own else None, int(begin_bytes))
    if own is not None:
        return own_memory(own, descriptor)
    bus_id, nbytes, handle = of_gpu
    own_bus_id = next((file.gpu.bus_id for file in own_files.values() if file.gpu is not None), None)
    return map_memory(
        int(device), descriptor, int(capacity_bytes), bus_id, int(nbytes), bytes.fromhex(handle), own_bus_id
    )


def _exchange(
    comm: MPI.Comm, run: str, offers: dict[str, int], timeout_s: float
) -> dict[str, int]:
    """Return every rank's files on every rank: label -> descriptor."""
    me, size = comm.Get_rank(), comm.Get_size()
    names = [f"\0coarse-{run}-start-{comm.Get_name()}-{rank}" for rank in range(size)]
    counts = np.empty(size, np.int64)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, _typed_timeout(timeout_s):
        channel.settimeout(timeout_s)
        take_senders(channel)
        channel.bind(names[me])
        comm.Allgather(np.array([len(offers)], np.int64), counts)  # all have bound their sockets
        found = dict(offers)
        before, total = int(counts[:me].sum()), int(counts.sum())
        while len(found) < len(offers) + before:
            receive_descriptor(channel, found)
        for label, descriptor in offers.items():
            for rank in range(size):
                if rank != me:
                    send_descriptor(channel, names[rank], label, descriptor)
        while len(found) < total:
            receive_descriptor(channel, found)
        comm.Barrier()  # nobody closes its socket before all have received
    return found


@contextlib.contextmanager
def _typed_timeout(timeout_s: float) -> Iterator[None]:
    """Say of a time limit of sockets what was waited for."""
    try:
        yield
    except TimeoutError:
        raise StallError(
            f"ranks of {socket.gethostname()} did not hand on their device memory within {timeout_s:g} s; see whether "
            "one hangs, or raise startup_timeout_s"
        ) from None


_MOST_LABEL_BYTES = 256
_LABEL = re.compile(
    r"control|pool( [0-9]{1,9})?"
    r"|device [0-9]{1,9} [0-9]{1,19} [0-9]{1,19}( [0-9a-f:.]{7,20} [0-9]{1,19} [0-9a-f]{128})?"
)
"""The longer one of a device is of one on a GPU: its bus address, its bytes and CUDA's handle."""
_CONTROL_BYTES = socket.CMSG_SPACE(array.array("i").itemsize) + socket.CMSG_SPACE(PEER.size)


def take_senders(channel: socket.socket) -> None:
    """Have the kernel tell who sent each datagram; before the socket has a name."""
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def send_descriptor(channel: socket.socket, address: str, label: str, descriptor: int) -> None:
    """Hand a descriptor to the process that has bound an address."""
    rights = array.array("i", [descriptor])
    channel.sendmsg([label.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], 0, address)


def receive_descriptor(channel: socket.socket, found: dict[str, int]) -> None:
    """Take one datagram and note its descriptor in `found` by its label; close what no rank has sent."""
    said, control, flags, _ = channel.recvmsg(_MOST_LABEL_BYTES, _CONTROL_BYTES)
    descriptors, user = array.array("i"), -1
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _, user, _ = PEER.unpack(data)
    label = said.decode(errors="replace")
    is_whole = not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
    is_ranks = user == os.geteuid() and len(descriptors) == 1 and _LABEL.fullmatch(label) is not None
    if is_whole and is_ranks and label not in found:
        found[label] = descriptors[0]
        return
    for descriptor in descriptors:
        os.close(descriptor)
