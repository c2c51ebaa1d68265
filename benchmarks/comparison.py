"""Medians and ratios of what was measured, as rows for a table and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.workloads import Effort, Workload


@dataclass(frozen=True)
class Measurement:
    """What one contender took for one operation, round by round."""

    contender: str
    elapsed_s: np.ndarray  # (num_rounds,) float64, of the slowest worker
    cpu_s: np.ndarray  # (num_rounds,) float64, of all workers and devices together


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender on one workload, per operation."""

    workload: str
    nbytes: int
    num_tensors: int
    num_buckets: int
    contender: str
    median_s: float
    fastest_s: float
    slowest_s: float
    median_cpu_s: float
    num_rounds: int
    num_operations: int

    def as_json(self) -> dict[str, object]:
        """The row as JSON holds it."""
        return asdict(self)


def rows_of(workload: Workload, effort: Effort, measurements: Sequence[Measurement]) -> list[Row]:
    """A row for each contender."""
    return [
        Row(
            workload=workload.name,
            nbytes=workload.nbytes,
            num_tensors=len(workload.tensors),
            num_buckets=len(workload.buckets),
            contender=measurement.contender,
            median_s=float(np.median(measurement.elapsed_s)),
            fastest_s=float(measurement.elapsed_s.min()),
            slowest_s=float(measurement.elapsed_s.max()),
            median_cpu_s=float(np.median(measurement.cpu_s)),
            num_rounds=effort.num_rounds,
            num_operations=effort.num_operations,
        )
        for measurement in measurements
    ]


def ratios_of(rows: Sequence[Row]) -> list[dict[str, object]]:
    """For each workload and each contender of ours, how many times faster than each peer, or of yardsticks."""
    by_place = {(row.workload, row.contender): row.median_s for row in rows}
    ratios: list[dict[str, object]] = []
    for row in rows:
        if not is_ours(row.contender):
            continue
        entry: dict[str, object] = {"workload": row.workload, "contender": row.contender}
        for peer, key in (("Gloo", "times_faster_than_gloo"), ("Open MPI", "times_faster_than_open_mpi")):
            peer_s = by_place.get((row.workload, peer))
            entry[key] = None if peer_s is None else peer_s / row.median_s
        for yardstick, key in (("memcpy", "memcpys"), ("bare sum", "bare_sums")):
            yardstick_s = by_place.get((row.workload, yardstick))
            entry[key] = None if yardstick_s is None else row.median_s / yardstick_s
        ratios.append(entry)
    return ratios


def is_ours(contender: str) -> bool:
    """True for contenders that are coarse."""
    return contender.startswith("coarse")
