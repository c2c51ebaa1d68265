"""Workers of whom one is stopped, computes for long, falls silent, or is killed; what the others find of it.

Arguments: the folder, and the cache, "none" or "all". Files there say how far workers are; `worker<rank>.json`, what
held.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

import coarse
import coarse.torch as ct
from coarse.errors import DeadRankError, InFlightError, StallError
from tests.mpi.odc.training import backward, digest, gradients, samples, sharded
from tests.support.claims import raises, report_error, waiting_at_most

FOLDER = Path(sys.argv[1])
CACHE = {"none": None, "all": True}[sys.argv[2]]
SLOW = 1
STALL_S = 2.0
"""How long workers wait for one that says nothing, while one is slow."""


def microbatches(model: torch.nn.Module, *, stops: bool) -> int:
    tokens = 0
    for number, sample in enumerate(samples(0, torch.float32)[:3]):
        if stops and number == 1 and coarse.rank() == SLOW:
            (FOLDER / "pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        tokens += backward(model, sample)
    return tokens


def go_on_when_others_have_ended(name: str) -> None:
    """In a thread of worker 0: wake the stopped one once all others are at the meeting."""
    others = [FOLDER / f"{name}{rank}" for rank in range(coarse.size()) if rank != SLOW]
    while not all(path.exists() for path in others):
        time.sleep(0.01)
    os.kill(int((FOLDER / "pid").read_text()), signal.SIGCONT)


def a_stopped_worker_keeps_nobody_from_the_meeting() -> str:
    found = {}
    for stops in (False, True):
        model = sharded(torch.float32, cache=CACHE)
        waker = threading.Thread(target=go_on_when_others_have_ended, args=(f"ended{stops}",))
        if stops and coarse.rank() == 0:
            waker.start()
        tokens = microbatches(model, stops=stops)
        (FOLDER / f"ended{stops}{coarse.rank()}").touch()
        ct.end_minibatch(model, num_tokens=tokens)
        found[stops] = digest(gradients(model))
    assert found[False] == found[True]
    return found[True]


def a_worker_that_computes_for_long_is_waited_for() -> None:
    model = sharded(torch.float32, cache=CACHE)
    with waiting_at_most(STALL_S):
        for _ in range(6 if coarse.rank() == SLOW else 1):
            backward(model, samples(0, torch.float32)[0])
            if coarse.rank() == SLOW:
                time.sleep(STALL_S / 3)
        ct.end_minibatch(model)


def a_silent_worker_is_named_and_the_same_call_goes_on() -> None:
    model = sharded(torch.float32, cache=CACHE)
    backward(model, samples(0, torch.float32)[0])
    if coarse.rank() == SLOW:
        while len(list(FOLDER.glob("stalled*"))) < coarse.size() - 1:
            time.sleep(0.05)
        ct.end_minibatch(model, num_tokens=3)
        return
    with waiting_at_most(0.3), raises(StallError, f"workers [{SLOW}]", "heard of", "raise stall_timeout_s") as caught:
        ct.end_minibatch(model, num_tokens=2)
    assert caught[0].missing == (SLOW,)
    with raises(InFlightError, "num_tokens=2", "again with 5"):
        ct.end_minibatch(model, num_tokens=5)
    (FOLDER / f"stalled{coarse.rank()}").touch()
    ct.end_minibatch(model, num_tokens=2)  # goes on where it was
    assert model.head.weight.grad is not None


def main() -> None:
    coarse.init()
    torch.set_num_threads(1)
    found = a_stopped_worker_keeps_nobody_from_the_meeting()
    a_worker_that_computes_for_long_is_waited_for()
    a_silent_worker_is_named_and_the_same_call_goes_on()
    (FOLDER / f"worker{coarse.rank()}.json").write_text(json.dumps(found))
    model = sharded(torch.float32, cache=CACHE)
    backward(model, samples(0, torch.float32)[0])
    began_s = time.perf_counter()
    if coarse.rank() == SLOW:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        ct.end_minibatch(model)
    except DeadRankError as error:
        report_error(FOLDER, coarse.rank(), time.perf_counter() - began_s, error)
        raise


main()
