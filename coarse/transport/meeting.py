"""The ranks of several hosts meet over MPI with a time limit, which MPI's own collectives do not have.

MPI_Init needs nothing but mpirun's daemons: it ends well where a firewall lets those through and MPI's messages not,
and the first collective would then wait for ever.
"""

import socket

from mpi4py import MPI

from coarse.errors import StallError
from coarse.protocol.clock import WallClock

_TAG = 31_999
_LEAST_S, _MOST_S = 0.0002, 0.005
_BEHIND_S = 2.0
"""Seconds that other ranks wait longer than rank 0, which knows the missing ranks and ends the job."""
_REMEDY = (
    "let MPI's messages through the firewalls between the hosts, or name the network that they share (mpirun --mca "
    "btl_tcp_if_include eth0)"
)
_abandoned: list[MPI.Request] = []
"""Requests that are never completed; MPI may still write into their buffers, which they keep."""


def meet(world: MPI.Comm, timeout_s: float | None, clock: WallClock) -> None:
    """Return once a word of every rank has come to rank 0 and one of rank 0 to every rank.

    Args:
        world: the communicator of all ranks of the job.
        timeout_s: the seconds that others may take; None: as long as it takes.
        clock: what the seconds are counted by.

    Raises:
        StallError: over that time; on rank 0 with the ranks that have not been heard of.
    """
    if world.Get_rank() == 0:
        others = range(1, world.Get_size())
        words = {rank: world.Irecv(bytearray(1), source=rank, tag=_TAG) for rank in others}
        absent = _until_done(words, timeout_s, clock)
        if absent:
            raise StallError(
                f"MPI rank 0 on host {socket.gethostname()}: no word over MPI came from MPI ranks {absent}, on other "
                f"hosts, in {timeout_s:g} s; {_REMEDY}, or raise startup_timeout_s if they call coarse.init() later"
            )
        _until_done({rank: world.Isend(b"c", dest=rank, tag=_TAG) for rank in others}, None, clock)
        return
    sent, come = world.Isend(b"c", dest=0, tag=_TAG), world.Irecv(bytearray(1), source=0, tag=_TAG)
    if _until_done({0: come}, None if timeout_s is None else timeout_s + _BEHIND_S, clock):
        _abandoned.append(sent)
        raise StallError(
            f"MPI rank {world.Get_rank()} on host {socket.gethostname()}: MPI rank 0 has not said over MPI, in "
            f"{timeout_s:g} s, that all ranks have come; {_REMEDY}, or raise startup_timeout_s if others call "
            "coarse.init() later"
        )
    sent.Wait()


def _until_done(requests: dict[int, MPI.Request], timeout_s: float | None, clock: WallClock) -> list[int]:
    """Wait for all; return the ranks of those that were not done in time."""
    until_s = None if timeout_s is None else clock.now_s() + timeout_s
    sleep_s = _LEAST_S
    while requests := {rank: request for rank, request in requests.items() if not request.Test()}:
        if until_s is not None and clock.now_s() >= until_s:
            _abandoned.extend(requests.values())
            return sorted(requests)
        clock.sleep_s(sleep_s)
        sleep_s = min(2 * sleep_s, _MOST_S)
    return []
