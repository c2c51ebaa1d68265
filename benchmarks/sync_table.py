"""The table of `sync.py`: a line for each workload."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.comparison import Row, ratios_of
from benchmarks.rendering import milliseconds, print_table, times

_CONTENDERS = ("Gloo", "Open MPI", "coarse, copy", "coarse, device", "bare sum", "memcpy")


def print_sync_table(rows: Sequence[Row], num_workers: int, num_devices: int) -> None:
    """Print times with CPU times, then ratios."""
    present = [name for name in _CONTENDERS if any(row.contender == name for row in rows)]
    workloads = list(dict.fromkeys(row.workload for row in rows))
    by_place = {(row.workload, row.contender): row for row in rows}
    lines = []
    for workload in workloads:
        cells = [by_place[workload, name] for name in present]
        lines.append([workload, *(f"{milliseconds(row.median_s)} / {milliseconds(row.median_cpu_s)}" for row in cells)])
    ranks = f"{num_workers} workers, {num_devices} memory devices, float32, measured"
    print_table(f"Milliseconds of one synchronisation / CPU milliseconds of all ranks ({ranks})", ["", *present], lines)
    if ratios := ratios_of(rows):
        print_table(f"Ratios of medians ({ranks})", *_ratio_table(workloads, ratios))


def _ratio_table(workloads: Sequence[str], ratios: Sequence[dict[str, object]]) -> tuple[list[str], list[list[str]]]:
    ours = list(dict.fromkeys(str(ratio["contender"]) for ratio in ratios))
    by_place = {(ratio["workload"], ratio["contender"]): ratio for ratio in ratios}
    measures = {
        "vs Gloo": "times_faster_than_gloo",
        "vs Open MPI": "times_faster_than_open_mpi",
        "in memcpys": "memcpys",
        "in bare sums": "bare_sums",
    }
    columns = ["", *(f"{name} {measure}" for name in ours for measure in measures)]
    lines = []
    for workload in workloads:
        values = [by_place[workload, name][key] for name in ours for key in measures.values()]
        lines.append([workload, *(times(value if isinstance(value, float) else None) for value in values)])
    return columns, lines
