"""Emulated runs beside simulated ones."""

from coarse.emulation.launch import EmulatedResult
from coarse.simulation.report import Report


def durations(run: EmulatedResult | Report) -> dict[tuple[int, int], float]:
    """Seconds of each worker's iterations, by worker and iteration."""
    return {(row.worker, row.iteration): row.duration_s for row in run.iterations}
