"""Run that can be presented: its results, its timelines, and its inputs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from coarse.cli.report.timeline import Row, Span, Timeline
from coarse.errors import ConfigError
from coarse.protocol.run_file import RUN_FILE
from coarse.protocol.whole_file import write_whole

DEMO_FILE = "rows.json"
_DEMO_STEPS = 4
"""Number of a measured run's iterations that are drawn."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Iteration of one mode; seconds are means over workers."""

    name: str
    policy: str
    iteration_s: float
    compute_s: float
    exposed_s: float
    idle_s: float
    link_bytes: tuple[tuple[str, float], ...] = ()
    """Links with their bytes in an iteration, the busiest first."""
    samples_s: tuple[float, ...] = ()
    """Seconds of an iteration under alternative inputs, equal for all modes; empty if not simulated."""

    def __post_init__(self) -> None:
        for key in ("iteration_s", "compute_s", "exposed_s", "idle_s"):
            if not (math.isfinite(getattr(self, key)) and getattr(self, key) >= 0):
                raise ConfigError(f"{key} of {self.name!r} must be at least 0 s, got {getattr(self, key)}", key=key)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Content of a run's folder."""

    kind: str
    """Kind of its numbers: "measured", "emulated" or "simulated"."""
    title: str
    inputs: Mapping[str, str]
    """Question, and the numbers on which the answer rests."""
    results: tuple[Result, ...]
    timelines: tuple[Timeline, ...]
    notes: tuple[str, ...] = ()

    def speed_ups(self) -> tuple[float, ...]:
        """Return each mode's speed-up over the first."""
        first = self.results[0].iteration_s
        return tuple(first / result.iteration_s if result.iteration_s else 1.0 for result in self.results)

    def range_s(self, result: Result) -> tuple[float, float] | None:
        """Return the least and most seconds of a mode's iteration under alternative inputs; None without these."""
        found = (result.iteration_s, *result.samples_s)
        return (min(found), max(found)) if result.samples_s else None

    def speed_up_range(self, result: Result) -> tuple[float, float] | None:
        """Return a mode's least and largest speed-up over the first, both under equal inputs; None without these."""
        first = self.results[0]
        if not result.samples_s or len(result.samples_s) != len(first.samples_s):
            return None
        pairs = zip((first.iteration_s, *first.samples_s), (result.iteration_s, *result.samples_s), strict=True)
        found = [one / other if other else 1.0 for one, other in pairs]
        return min(found), max(found)

    def to_mapping(self) -> dict[str, Any]:
        """Return values for JSON; each row carries its kind and speed-up, for readers of rows alone."""
        rows = [
            {**asdict(result), "kind": self.kind, "speed_up": speed_up}
            for result, speed_up in zip(self.results, self.speed_ups(), strict=True)
        ]
        return {
            "kind": self.kind,
            "title": self.title,
            "inputs": dict(self.inputs),
            "rows": rows,
            "notes": list(self.notes),
            "timelines": [timeline.to_mapping() for timeline in self.timelines],
        }


@dataclass(frozen=True)
class Picture:
    """Drawing of a run."""

    path: Path
    mode: str | None
    """Title of the timeline that it shows; None if it shows all modes."""
    caption: str
    """Description of its content."""


def write_run(run: Run, folder: Path) -> Path:
    """Write the run's file, whole or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_whole(folder / RUN_FILE, json.dumps(run.to_mapping()))


def read_run(folder: Path) -> Run:
    """Return the run of a folder that `coarse predict` or the demo wrote; raise ConfigError without one."""
    readers = {RUN_FILE: _predicted, DEMO_FILE: _demonstrated}
    for name, reader in readers.items():
        path = folder / name
        if path.is_file():
            try:
                return reader(json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ConfigError(
                    f"{path}: not the record of a run ({type(error).__name__}: {error}); make the run again"
                ) from None
    state = f"has neither {RUN_FILE} nor {DEMO_FILE}" if folder.is_dir() else "is no folder"
    raise ConfigError(
        f"no run in {folder}: it {state}; give the folder that `coarse predict --out` or experiments/demo.py wrote"
    )


def _predicted(document: Mapping[str, Any]) -> Run:
    results = []
    for row in document["rows"]:
        links = tuple((str(name), float(nbytes)) for name, nbytes in row["link_bytes"])
        seconds = {key: float(row[key]) for key in ("iteration_s", "compute_s", "exposed_s", "idle_s")}
        samples_s = tuple(map(float, row.get("samples_s", ())))
        name, policy = str(row["name"]), str(row["policy"])
        results.append(Result(name=name, policy=policy, link_bytes=links, samples_s=samples_s, **seconds))
    if not results:
        raise ValueError("no rows")
    return Run(
        kind=str(document["kind"]),
        title=str(document["title"]),
        inputs={str(key): str(value) for key, value in document["inputs"].items()},
        results=tuple(results),
        timelines=tuple(Timeline.from_mapping(values) for values in document["timelines"]),
        notes=tuple(str(note) for note in document["notes"]),
    )


def _demonstrated(document: Mapping[str, Any]) -> Run:
    """Return the run of the demo's record: steps of live runs, whose links were not observed."""
    runs: Mapping[str, Sequence[Mapping[str, Any]]] = document["runs"]
    return Run(
        kind="measured",
        title=_demo_title(document),
        inputs=_demo_inputs(document),
        results=tuple(_measured_result(name, documents) for name, documents in runs.items()),
        timelines=tuple(_measured_timeline(name, documents) for name, documents in runs.items()),
        notes=("Live runs know how long a worker waited (exposed and idle together), and not which link was busy.",),
    )


def _demo_title(document: Mapping[str, Any]) -> str:
    """Return a title with the model and the machine, if the record names them."""
    first = next(iter(document["runs"].values()))[0]
    shape, machine = first.get("settings", {}).get("shape"), document.get("machine")
    model = f"a GPT of {shape['layers']} layers of width {shape['width']}" if shape else "one training"
    return f"The demo: {model}" + (f" on {machine['processor']}, {machine['num_cores']} cores" if machine else "")


def _demo_inputs(document: Mapping[str, Any]) -> dict[str, str]:
    machine = document.get("machine", {})
    inputs = {"command": document.get("command"), **{key.replace("_", " "): machine[key] for key in machine}}
    return {key: str(value) for key, value in inputs.items() if value is not None}


def settled(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the steps that no probe disturbed."""
    return [step for step in document["steps"] if step.get("settled", True)] or document["steps"]


def _measured_result(name: str, documents: Sequence[Mapping[str, Any]]) -> Result:
    steps = [step for document in documents for step in settled(document)]
    compute = ("forward_s", "backward_s", "optimizer_s")
    return Result(
        name=name,
        policy="-",
        iteration_s=fmean(float(step["step_s"]) for step in steps),
        compute_s=fmean(sum(float(step[key]) for key in compute) for step in steps),
        exposed_s=fmean(float(step["wait_s"]) for step in steps),
        idle_s=0.0,
    )


def _measured_timeline(name: str, documents: Sequence[Mapping[str, Any]]) -> Timeline:
    """Return a few steps from the middle of the run, phase by phase."""
    first = max(0, (len(documents[0]["steps"]) - _DEMO_STEPS) // 2)
    chosen = [document["steps"][first : first + _DEMO_STEPS] for document in documents]
    begin_s = min(float(steps[0]["begin_s"]) for steps in chosen)
    rows = tuple(
        Row(name=f"worker {worker}", spans=tuple(span for step in steps for span in _phases(step, begin_s)))
        for worker, steps in enumerate(chosen)
    )
    return Timeline(title=name, duration_s=max(span.end_s for row in rows for span in row.spans), rows=rows)


def _phases(step: Mapping[str, Any], begin_s: float) -> list[Span]:
    now_s, spans = float(step["begin_s"]) - begin_s, []
    for kind in ("forward", "backward", "wait", "optimizer"):
        end_s = now_s + float(step[f"{kind}_s"])
        spans.append(Span(kind, now_s, end_s))
        now_s = end_s
    return spans
