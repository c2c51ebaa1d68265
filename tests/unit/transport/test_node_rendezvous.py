"""The ranks of a node wait for each other before MPI: ranks of one process stand for processes here."""

import os
import socket
from contextlib import ExitStack
from dataclasses import replace

import pytest

from coarse.errors import CoarseError, StallError
from coarse.protocol.clock import WallClock
from coarse.transport import node_rendezvous
from coarse.transport.node_rendezvous import LauncherLine, NodeJob, arrival


def ranks(environ: dict[str, str]) -> list[NodeJob]:
    job = NodeJob.of(environ)
    assert job is not None
    return [replace(job, world_rank=rank, local_rank=rank) for rank in range(job.local_size)]


@pytest.fixture
def environ(tmp_path):
    names = {"RANK": "0", "SIZE": "3", "LOCAL_RANK": "0", "LOCAL_SIZE": "3"}
    return {f"OMPI_COMM_WORLD_{name}": value for name, value in names.items()} | {"PMIX_NAMESPACE": str(tmp_path)}


def test_ranks_that_have_not_come_are_named_and_those_that_have_gone_again_too(environ):
    first, second, third = ranks(environ)
    with ExitStack() as others:
        for rank in (second, third):
            others.enter_context(arrival(replace(rank, local_size=0), 0.0, WallClock()))
        with arrival(first, 0.0, WallClock()):
            pass
    with pytest.raises(StallError, match=r"MPI rank 0: MPI ranks \[1, 2\] have not called coarse\.init\(\)"):
        arrival(first, 0.0, WallClock()).__enter__()


def test_a_rank_sleeps_while_others_are_absent_whoever_has_come_already(environ, monkeypatch):
    first, second, _ = ranks(environ)
    looks = []
    monkeypatch.setattr(node_rendezvous, "_LOOK_AGAIN_S", 0.02)
    has_come = node_rendezvous._has_come
    monkeypatch.setattr(node_rendezvous, "_has_come", lambda address: looks.append(address) or has_come(address))

    with ExitStack() as opened:
        opened.enter_context(arrival(second, None, WallClock()))
        visitors = [opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        monkeypatch.setattr(node_rendezvous, "_sleep_until_one_comes", Visited(first, visitors))
        with pytest.raises(StallError, match=r"ranks \[2\] have not"):
            arrival(first, 0.2, WallClock()).__enter__()
    assert len(looks) < 2 * (3 + 0.2 / 0.02)  # two ranks, of which one has come; thousands were there no sleep


class Visited:
    """The sleep between two looks, before whose first two others connect, as ranks do that have come."""

    def __init__(self, job, visitors):
        self._job, self._visitors, self._sleep = job, visitors, node_rendezvous._sleep_until_one_comes

    def __call__(self, place):
        while self._visitors:
            self._visitors.pop().connect(self._job.address(self._job.local_rank))
        self._sleep(place)


def test_a_light_device_waits_for_nobody_but_has_come(environ):
    first, second, third = ranks(environ)
    with arrival(second, None, WallClock()), arrival(third, None, WallClock()), arrival(first, 0.0, WallClock()):
        pass


def test_where_a_job_has_other_nodes_ranks_are_local(environ):
    environ["OMPI_COMM_WORLD_SIZE"] = "6"
    with pytest.raises(StallError, match=r"local ranks \(of .*\) \[1, 2\]"):
        arrival(ranks(environ)[0], 0.0, WallClock()).__enter__()


def test_what_coarse_run_kept_of_mpis_place_goes_before_that_among_workers(environ):
    job = NodeJob.of({**environ, "COARSE_JOB": "4,8,1,4"})
    assert job is not None
    assert (job.world_rank, job.local_rank, job.local_size, job.is_whole) == (4, 1, 4, False)


def test_a_process_that_no_mpirun_started_waits_for_nobody():
    assert NodeJob.of({"PMIX_RANK": "0"}) is None
    with arrival(None, 0.0, WallClock()):
        pass


def test_jobs_of_two_launchers_have_two_names(environ):
    other = {**environ, "PMIX_SERVER_URI41": "tcp4://127.0.0.1:2"}
    assert ranks(environ)[0].name != ranks(other)[0].name


def test_a_launcher_that_is_gone_is_told_nothing():
    with LauncherLine({"COARSE_LAUNCHER": "no-such-launcher", "PMIX_RANK": "0"}) as line:
        line.say_joined()


def test_a_place_that_another_has_taken_is_an_error_that_names_it(environ):
    first, *_ = ranks(environ)
    with arrival(first, None, WallClock()), pytest.raises(CoarseError, match=r"MPI rank 0: another process .* start"):
        arrival(first, None, WallClock()).__enter__()


def test_a_process_of_another_user_is_no_rank_that_has_come(environ, monkeypatch):
    first, second, third = ranks(environ)
    user = os.geteuid()
    with arrival(second, None, WallClock()), arrival(third, None, WallClock()):
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        with pytest.raises(StallError, match=r"\[1, 2\] have not called"):
            arrival(first, 0.0, WallClock()).__enter__()


def test_whoever_waits_long_says_for_whom_once_for_the_node(environ, monkeypatch, capsys):
    monkeypatch.setattr(node_rendezvous, "_SAY_AFTER_S", 0.0)
    first, second, _ = ranks(environ)
    with arrival(first, None, WallClock()), pytest.raises(StallError):
        arrival(second, 0.02, WallClock()).__enter__()
    assert capsys.readouterr().err == ""  # rank 0 has come, and will say it
    with arrival(second, None, WallClock()), pytest.raises(StallError):
        arrival(first, 0.02, WallClock()).__enter__()
    said = capsys.readouterr().err
    assert "MPI rank 0 waits in coarse.init() for MPI ranks [2], which have not called it yet; 0 s of" in said
