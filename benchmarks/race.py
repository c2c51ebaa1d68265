"""One workload over all contenders: their sums are checked once, then their times are taken."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.comparison import Measurement
from benchmarks.contenders.protocol import Contender, fill_pattern, wrong_tensors
from benchmarks.measuring import Track, Turn
from benchmarks.workloads import DTYPE, Effort, Workload


def race(track: Track, workload: Workload, contenders: Sequence[Contender], effort: Effort) -> list[Measurement]:
    """What each contender took; raises ValueError on a wrong sum."""
    host = np.ones(workload.numel, dtype=DTYPE)
    turns = []
    for contender in contenders:
        tensors = contender.prepare(workload, host)
        if contender.sums:
            _check_sums(track, workload, contender, tensors)
        turns.append(Turn(contender.name, partial(_write_anew, tensors, track.worker + 1), contender.run))
    measurements = track.measure(turns, effort)
    for contender in contenders:
        contender.close()
    return measurements


def _check_sums(track: Track, workload: Workload, contender: Contender, tensors: list[np.ndarray]) -> None:
    fill_pattern(tensors, track.worker)
    track.wait()
    contender.run()
    wrong = wrong_tensors(tensors, track.num_workers)
    track.wait()
    if num_wrong := track.total(len(wrong)):
        raise ValueError(
            f"{contender.name} summed {workload.name} wrongly: {num_wrong} of all workers' tensors differ from the sum "
            f"of what the workers gave; on worker {track.worker} {len(wrong)} of {len(tensors)}, first {wrong[:5]}"
        )


def _write_anew(tensors: Sequence[np.ndarray], value: float) -> None:
    """Write every gradient, as a backward pass would have just done."""
    for tensor in tensors:
        tensor.fill(value)
