"""Rows of cells, computed by parallel processes that end with this one, even if it is killed."""

import ctypes
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from coarse.cli.report.sweep.question import Cell, simulated
from coarse.cli.report.sweep.rows import Row
from coarse.errors import CoarseError

_PR_SET_PDEATHSIG = 1


def rows_of(cells: Sequence[Cell], num_processes: int) -> Iterator[Row]:
    """Yield the row of each cell, in any order; this process computes them if `num_processes` is 0 or 1.

    Raises:
        CoarseError: the system ended a process, as it does where memory runs out.
    """
    if num_processes <= 1:
        yield from map(simulated, cells)
        return
    pool = ProcessPoolExecutor(
        num_processes, mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),)
    )
    try:
        for done in as_completed([pool.submit(simulated, cell) for cell in cells]):
            yield done.result()
    except BrokenProcessPool as error:
        raise CoarseError(
            f"a process ended amid its point ({error}); is there memory enough for {num_processes}? "
            "Start the command again with fewer --processes; it goes on where it was"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with(parent: int) -> None:
    """End this new process when its parent has ended, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
