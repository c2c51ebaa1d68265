"""Sends between devices when one of them dies: in a process of its own, since importing the transport starts MPI."""

import subprocess
import sys

PROGRAM = """
from coarse.session import _start_mpi

_start_mpi()
from mpi4py import MPI
import numpy as np
from coarse.protocol.records import Tag
from coarse.transport.mpi import MpiTransport


class Failed:
    def Get_size(self):
        return 1

    def Translate_ranks(self, ranks, group):
        return [1]


class Request:
    def __init__(self, dest):
        self.dest, self.is_complete, self.tests = dest, False, 0

    def Test(self):
        self.tests += 1
        if self.dest == 1:
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
        return self.is_complete


class Comm:
    def __init__(self):
        self.requests = []

    def Isend(self, buffer, dest, tag):
        self.requests.append(Request(dest))
        return self.requests[-1]

    def Improbe(self, status):
        return None

    def Get_failed(self):
        return Failed()

    def Get_group(self):
        return None

    def Ack_failed(self, number):
        pass


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


def test_the_death_of_a_device_leaves_sends_to_the_others_under_way():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
