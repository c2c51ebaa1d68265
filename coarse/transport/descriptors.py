"""File descriptors of device memory, handed from rank to rank over Unix datagram sockets.

The sockets' names are anybody's to send to, so a datagram counts only where the kernel says that a process of this user
sent it, and only with what ranks send: one descriptor under a label.
"""

import array
import os
import re
import socket

from coarse.transport.node_rendezvous import PEER

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
