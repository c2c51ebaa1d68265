"""Sends between devices when one of them dies: in a process of its own, since importing the transport starts MPI."""

import subprocess
import sys

ONE_DEAD = """
class Failed:
    def Get_size(self):
        return 1

    def Translate_ranks(self, ranks, group):
        return [1]


class CommOfOneDead:
    def Get_failed(self):
        return Failed()

    def Get_group(self):
        return None

    def Ack_failed(self, number):
        pass
"""
"""What a communicator says of rank 1, for both programs."""
PROGRAM = """
from coarse.transport.mpi_library import start_mpi

start_mpi()
from mpi4py import MPI
import numpy as np
from coarse.protocol.records import Tag
from coarse.transport.mpi import MpiTransport


class Request:
    def __init__(self, dest):
        self.dest, self.is_complete, self.tests = dest, False, 0

    def Test(self):
        self.tests += 1
        if self.dest == 1:
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
        return self.is_complete


class Comm(CommOfOneDead):
    def __init__(self):
        self.requests = []

    def Isend(self, buffer, dest, tag):
        self.requests.append(Request(dest))
        return self.requests[-1]

    def Improbe(self, status):
        return None


comm = Comm()
transport = MpiTransport(comm, (0, 1, 2))
for device in (2, 1, 2):
    transport.send(device, Tag.RECORD, np.zeros(8, np.uint8))
assert list(transport.poll()) == []
assert transport.take_lost() == [1]
assert transport.is_busy, "what goes to device 2 is still under way, and MPI reads its buffers"
comm.requests[0].is_complete = comm.requests[2].is_complete = True
assert list(transport.poll()) == []
assert not transport.is_busy
assert [request.tests for request in comm.requests] == [2, 1, 2]
transport.send(1, Tag.RECORD, np.zeros(8, np.uint8))
assert len(comm.requests) == 3
"""


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_the_death_of_a_device_leaves_sends_to_the_others_under_way():
    done = ended(ONE_DEAD + PROGRAM)
    assert done.returncode == 0, done.stderr


RECEIVES = """
import numpy as np
from mpi4py import MPI
from coarse.protocol.records import Tag
from coarse.transport.mpi import MpiTransport


class Request:
    def __init__(self):
        self.is_complete, self.has_died = False, False

    def Test(self):
        if self.has_died:
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
        return self.is_complete


class Message:
    def __init__(self, value, request):
        self.value, self.request = value, request

    def Irecv(self, buffer):
        buffer[0][...] = self.value
        return self.request


class Status:
    def Get_count(self, kind):
        return self.nbytes

    def Get_source(self):
        return self.source

    def Get_tag(self):
        return int(Tag.RING)


class Comm(CommOfOneDead):
    def __init__(self):
        self.announced, self.probes = [], 0

    def Improbe(self, status):
        self.probes += 1
        if not self.announced:
            return None
        status.source, status.nbytes, message = self.announced.pop(0)
        return message


class FakeMpi:
    Status, BYTE, Exception = Status, MPI.BYTE, MPI.Exception
    ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING = MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING


import coarse.transport.mpi as module
module.MPI = FakeMpi
comm = Comm()
transport = MpiTransport(comm, (0, 1, 2))
long, behind, other = Request(), Request(), Request()
behind.is_complete = other.is_complete = True
comm.announced += [
    (1, 1 << 20, Message(1, long)), (1, 8, Message(2, behind)), (2, 8, Message(3, other)),
]
come = [(device, int(payload[0])) for device, _, payload in transport.poll()]
assert come == [(2, 3)], come
assert transport.is_busy
long.is_complete = True
come = [(device, int(payload[0])) for device, _, payload in transport.poll()]
assert come == [(1, 1), (1, 2)], come
assert not transport.is_busy and transport.received_bytes == [0, (1 << 20) + 8, 8]

comm.announced += [(2, 1 << 26, Message(4, Request())), (2, 8, Message(5, Request()))]
assert list(transport.poll()) == [] and len(comm.announced) == 1, "no more than so much comes in at once"
transport._receiving[2][0].requests[0][0].is_complete = True
assert [int(payload[0]) for _, _, payload in transport.poll()] == [4]
assert len(comm.announced) == 0

dying = Request()
comm.announced.append((1, 1 << 20, Message(6, dying)))
assert list(transport.poll()) == []
dying.has_died = True
assert list(transport.poll()) == [] and transport.take_lost() == [1]
transport._receiving[2][0].requests[0][0].is_complete = True
assert [int(payload[0]) for _, _, payload in transport.poll()] == [5]
assert not transport.is_busy, "what a lost device had begun to send never comes"
"""


FRAMES = """
from collections import deque

import numpy as np
from mpi4py import MPI
from coarse.protocol.records import Tag
from coarse.transport.mpi import FRAME_BYTES, MpiTransport


class Request:
    def Test(self):
        return True


class Message:
    def __init__(self, payload):
        self.payload = payload

    def Irecv(self, buffer):
        buffer[0][...] = self.payload
        return Request()

    def Recv(self, buffer):
        buffer[0].view(np.uint8)[...] = self.payload


class Status:
    def Get_count(self, kind):
        return self.nbytes

    def Get_source(self):
        return 0

    def Get_tag(self):
        return self.tag


class Loop:
    \"\"\"What is sent comes, as much at once as the test lets through.\"\"\"

    def __init__(self):
        self.under_way, self.let_through = deque(), 0

    def Isend(self, buffer, dest, tag):
        self.under_way.append((tag, buffer[0].copy()))
        return Request()

    def Improbe(self, status):
        if not self.let_through:
            return None
        self.let_through -= 1
        status.tag, payload = self.under_way.popleft()
        status.nbytes = payload.nbytes
        return Message(payload)


class FakeMpi:
    Status, BYTE, Exception = Status, MPI.BYTE, MPI.Exception


import coarse.transport.mpi as module
module.MPI = FakeMpi
rng = np.random.default_rng(0)
sent = [rng.integers(0, 256, n, np.uint8) for n in (8, FRAME_BYTES, FRAME_BYTES + 1, 5 * FRAME_BYTES, 0, 3)]
for near, num_frames in ((frozenset(), 4 + 1 + 2 + 1 + 5), (frozenset({0}), 6)):
    loop = Loop()
    transport = MpiTransport(loop, (0,), near)
    for number, payload in enumerate(sent):
        transport.send(0, (Tag.RING, Tag.RECORD)[number % 2], payload)
    assert len(loop.under_way) == num_frames, len(loop.under_way)
    assert max(payload.nbytes for _, payload in loop.under_way) == (max(map(len, sent)) if near else FRAME_BYTES)
    come = []
    while loop.under_way:
        loop.let_through = 1
        come += transport.poll()
    assert [(device, tag) for device, tag, _ in come] == [(0, (Tag.RING, Tag.RECORD)[n % 2]) for n in range(6)]
    assert all(np.array_equal(payload, wanted) for (_, _, payload), wanted in zip(come, sent, strict=True))
    assert not transport.is_busy and transport.sent_bytes == transport.received_bytes == [sum(map(len, sent))]
"""


def test_long_messages_go_to_other_nodes_in_frames_that_ask_for_nothing():
    done = ended(FRAMES)
    assert done.returncode == 0, done.stderr


def test_a_long_message_holds_back_no_other_device_and_what_follows_it_keeps_its_place():
    done = ended(ONE_DEAD + RECEIVES)
    assert done.returncode == 0, done.stderr
