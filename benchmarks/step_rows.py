"""Rows and table of `step.py`: what synchronisation adds to a training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.comparison import Measurement
from benchmarks.rendering import milliseconds, percent, print_table

UNSYNCHRONISED = "unsynchronised"
MEMCPY = "memcpy"


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One contender's step at one batch size."""

    rows_per_worker: int
    contender: str
    gradient_bytes: int
    median_step_s: float
    median_cpu_s: float
    """Of all ranks together."""
    unsynchronised_memcpys: float
    """Memcpys of the gradients that fit into the unsynchronised step."""
    added_share: float
    """Of the unsynchronised step: (step - unsynchronised) / unsynchronised."""

    def as_json(self) -> dict[str, object]:
        """The row as JSON holds it."""
        return asdict(self)


def step_rows(rows_per_worker: int, gradient_bytes: int, measurements: Sequence[Measurement]) -> list[StepRow]:
    """A row for each contender; the unsynchronised step and the memcpy must be among the measurements."""
    median_s = {measurement.contender: float(np.median(measurement.elapsed_s)) for measurement in measurements}
    base_s = median_s[UNSYNCHRONISED]
    return [
        StepRow(
            rows_per_worker=rows_per_worker,
            contender=measurement.contender,
            gradient_bytes=gradient_bytes,
            median_step_s=median_s[measurement.contender],
            median_cpu_s=float(np.median(measurement.cpu_s)),
            unsynchronised_memcpys=base_s / median_s[MEMCPY],
            added_share=median_s[measurement.contender] / base_s - 1,
        )
        for measurement in measurements
        if measurement.contender != MEMCPY
    ]


def print_step_table(rows: Sequence[StepRow], num_workers: int, num_devices: int) -> None:
    """Print a line for each batch size."""
    contenders = list(dict.fromkeys(row.contender for row in rows))
    synchronised = [name for name in contenders if name != UNSYNCHRONISED]
    by_place = {(row.rows_per_worker, row.contender): row for row in rows}
    lines = []
    for size in dict.fromkeys(row.rows_per_worker for row in rows):
        cells = [by_place[size, name] for name in contenders]
        lines.append(
            [
                str(size),
                f"{cells[0].unsynchronised_memcpys:.1f}",
                *(f"{milliseconds(row.median_step_s)} / {milliseconds(row.median_cpu_s)}" for row in cells),
                *(percent(by_place[size, name].added_share) for name in synchronised),
            ]
        )
    columns = ["rows", "memcpys", *contenders, *(f"{name} adds" for name in synchronised)]
    print_table(
        f"Milliseconds of a training step / CPU milliseconds of all ranks ({num_workers} workers, {num_devices} memory "
        f"devices, {rows[0].gradient_bytes / 2**20:.1f} MiB of gradients, measured)",
        columns,
        lines,
    )
