"""Transfers and computation at once, shown by order and not by times: each waits in turn for the other to get on."""

import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

from coarse.client.link import Due
from coarse.collectives.progress import Conditions, Job, Pending, ProgressThread
from tests.mpi.sharding.runs import started
from tests.support.references import NUM_BLOCKS, Net, Run

TIMEOUT_S = 15.0
"""After which something is not under way; much longer than it takes on a busy machine."""


class Event(NamedTuple):
    """A job or a computation, and how far it has come."""

    what: str
    state: str
    """submitted, begun or ended."""
    thread: str


class Witness:
    """Notes the jobs of the progress thread and what computes, in the order in which they happen."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._held: dict[str, tuple[str, str]] = {}

    def note(self, what: str, state: str) -> None:
        """Something has come so far."""
        with self._changed:
            self.events.append(Event(what, state, threading.current_thread().name))
            self._changed.notify_all()

    def has_seen(self, what: str, state: str) -> bool:
        """Whether something has come so far since the last `forget`."""
        with self._changed:
            return any((event.what, event.state) == (what, state) for event in self.events)

    def wait_for(self, what: str, state: str) -> None:
        """Compute, so to say, until something has come so far."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.has_seen(what, state), TIMEOUT_S):
                raise AssertionError(f"{what!r} was never {state} meanwhile; seen: {self.events}")

    def hold(self, what: str, until: tuple[str, str]) -> None:
        """Delay a job until something else has come so far."""
        self._held[what] = until

    def forget(self) -> None:
        """A step begins."""
        with self._changed:
            self.events.clear()

    def witnessed(self, job: Job, what: str) -> Conditions:
        """A job that is noted, and delayed where it is held."""
        if what in self._held:
            yield _Seen(self, *self._held[what])
        self.note(what, "begun")
        waits = job()
        if waits is not None:
            yield from waits
        self.note(what, "ended")


class _Seen:
    """Over once a witness has seen something; see coarse.collectives.conditions."""

    def __init__(self, witness: Witness, what: str, state: str) -> None:
        self._witness, self._what, self._state = witness, what, state

    def is_over(self) -> bool:
        return self._witness.has_seen(self._what, self._state)

    def missing(self) -> tuple[int, ...]:
        return ()


@contextmanager
def witness() -> Iterator[Witness]:
    """Have all jobs pass through a witness meanwhile."""
    found, submit = Witness(), ProgressThread.submit

    def submit_witnessed(
        thread: ProgressThread, lane: Hashable, job: Job, what: str, members: Collection[int] | None = None,
        due: Due | None = None,
    ) -> Pending:  # fmt: skip
        found.note(what, "submitted")
        return submit(thread, lane, lambda: found.witnessed(job, what), what, members, due)

    ProgressThread.submit = submit_witnessed  # type: ignore[method-assign]
    try:
        yield found
    finally:
        ProgressThread.submit = submit  # type: ignore[method-assign]


def during_blocks(model: nn.Module, forward: Callable[[int], None], backward: Callable[[int], None]) -> None:
    """Call these in the midst of each block's computation."""
    for index, block in enumerate(model.blocks):

        def between(_module: nn.Module, _args: object, output: Tensor, index: int = index) -> None:
            forward(index)
            if output.requires_grad:
                output.register_hook(lambda _gradient: backward(index))

        block.first.register_forward_hook(between)


def warm(mode: str) -> Run:
    """A run that knows the order of its units."""
    run = started(Net().double(), mode)
    run.train(0)
    return run


def gathers_the_next_unit_while_one_computes(mode: str) -> None:
    run = warm(mode)
    with witness() as seen:

        def forward(index: int) -> None:
            if index + 1 < NUM_BLOCKS:
                seen.wait_for(f"forward gather of blocks.{index + 1}", "ended")

        def backward(index: int) -> None:
            if index > 0:
                seen.wait_for(f"backward gather of blocks.{index - 1}", "ended")

        during_blocks(run.model, forward, backward)
        for step in range(1, 3):
            seen.forget()
            run.train(step)


def computes_while_the_next_unit_is_gathered(mode: str) -> None:
    run = warm(mode)
    with witness() as seen:
        for index in range(NUM_BLOCKS - 1):
            seen.hold(f"forward gather of blocks.{index + 1}", (f"forward of blocks.{index}", "ended"))
            seen.hold(f"backward gather of blocks.{index}", (f"backward of blocks.{index + 1}", "ended"))
        during_blocks(
            run.model,
            lambda index: seen.note(f"forward of blocks.{index}", "ended"),
            lambda index: seen.note(f"backward of blocks.{index}", "ended"),
        )
        for step in range(1, 3):
            seen.forget()
            run.train(step)


def moves_bytes_in_a_thread_of_its_own(mode: str) -> None:
    run = warm(mode)
    with witness() as seen:
        run.train(1)
    moved = [event for event in seen.events if event.state != "submitted"]
    computing = threading.current_thread().name
    assert moved
    assert not [event for event in moved if event.thread == computing]
    assert {event.thread for event in seen.events if event.state == "submitted"} == {computing}


CHECKS = (
    gathers_the_next_unit_while_one_computes,
    computes_while_the_next_unit_is_gathered,
    moves_bytes_in_a_thread_of_its_own,
)
