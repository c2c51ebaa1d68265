"""Run as Chakra execution traces, a file for each worker: MODE.RANK.et, as ASTRA-sim expects them.

[Note: what a graph says] Chakra's traces are workloads: what is computed, for how long, and what is summed when it is
there; who adds, and over which links, is a simulator's to say. So each gradient, or bucket of them, is a COMM_COLL node
of type ALL_REDUCE with its bytes, in all modes: also where memory devices added it. Compute nodes follow one another:
forward, then backward, cut where gradients were there. Dependencies are those of data, the only ones that ASTRA-sim
follows. start_time_micros and duration_micros of a collective are those of the run, from sending to the sum.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

from coarse.cli.chakra.messages import Collective, Int64, Node, NodeType, Value, encoded
from coarse.cli.own_model.traces.chakra_step import DURATION_S
from coarse.cli.own_model.traces.file import json_of
from coarse.cli.own_model.traces.perfetto_step import SentGradient, WorkerStep, workers_of
from coarse.cli.own_model.traces.step import ROUNDING
from coarse.cli.report.run import DEMO_FILE, Run, settled
from coarse.errors import ConfigError
from coarse.protocol.run_file import RUN_FILE
from coarse.protocol.whole_file import write_whole

_FP32_BYTES = 4
_SUMMING = ("single", "dense", "allreduce", "coarse", "switchml", "sharp")
"""Live modes in which workers exchange sums of gradients and nothing else."""
_US_PER_S = 1e6


@dataclass(frozen=True, kw_only=True)
class RankedStep:
    """Step of a worker, and its seconds in the optimizer."""

    step: WorkerStep
    optimizer_s: float = 0.0


def write_chakra(run: Run, folder: Path) -> Iterator[Path]:
    """Write the files of each mode, one for each worker, into the run's folder; yield their paths.

    Raises:
        ConfigError: a run whose record lacks what a graph needs; with the remedy.
    """
    modes = _predicted(run, folder) if (folder / RUN_FILE).is_file() else _demonstrated(folder)
    for mode, workers in modes:
        about = {"kind": run.kind, "mode": mode, "run": run.title}
        for rank, worker in enumerate(workers):
            path = folder / f"{mode}.{rank}.et"
            yield write_whole(path, encoded(graph_of(worker), about))


def graph_of(worker: RankedStep) -> Iterator[Node]:
    """Yield the nodes of a worker's graph; see [Note: what a graph says]."""
    step = worker.step
    assert step.backward is not None, "every worker has a backward"
    begin_s, end_s = step.forward or (step.backward[0], step.backward[0])
    origin_s = begin_s
    yield _compute(0, "forward", (), begin_s - origin_s, end_s - begin_s)
    last, begin_s = 0, step.backward[0]
    collectives, now_s = [], 0.0
    number = 1
    for gradient in step.gradients:
        if gradient.ready_s > now_s or last == 0:
            name = f"backward to {gradient.name}"
            yield _compute(number, name, (last,), begin_s + now_s - origin_s, gradient.ready_s - now_s)
            last, now_s, number = number, gradient.ready_s, number + 1
        yield _collective(number, gradient, last, origin_s)
        collectives.append(number)
        number += 1
    rest_s = step.backward[1] - begin_s - now_s
    if rest_s > ROUNDING * now_s or last == 0:
        yield _compute(number, "end of backward", (last,), begin_s + now_s - origin_s, max(0.0, rest_s))
        last, number = number, number + 1
    if worker.optimizer_s:
        at_s = max([step.backward[1], *(gradient.end_s for gradient in step.gradients)])
        yield _compute(number, "optimizer", (*collectives, last), at_s - origin_s, worker.optimizer_s)


def _compute(number: int, name: str, deps: tuple[int, ...], begin_s: float, duration_s: float) -> Node:
    attributes: Mapping[str, Value] = {"is_cpu_op": False, DURATION_S: duration_s}
    return Node(
        id=number, name=name, type=NodeType.COMP, data_deps=deps, start_us=_us(begin_s), duration_us=_us(duration_s),
        attributes=attributes,
    )  # fmt: skip


def _collective(number: int, gradient: SentGradient, after: int, origin_s: float) -> Node:
    attributes: Mapping[str, Value] = {
        "is_cpu_op": False,
        "comm_type": Int64(Collective.ALL_REDUCE),
        "comm_size": Int64(gradient.nbytes),
    }
    return Node(
        id=number, name=gradient.name, type=NodeType.COMM_COLL, data_deps=(after,),
        start_us=_us(gradient.begin_s - origin_s), duration_us=_us(gradient.end_s - gradient.begin_s),
        attributes=attributes,
    )  # fmt: skip


def _us(seconds: float) -> int:
    return max(0, round(seconds * _US_PER_S))


def _predicted(run: Run, folder: Path) -> Iterator[tuple[str, list[RankedStep]]]:
    """Yield (mode, workers) from the traces beside the run; a worker that stood for all is repeated."""
    for timeline in run.timelines:
        if not timeline.title.isidentifier():
            raise ConfigError(
                f"{folder / RUN_FILE}: timelines must be named by modes, got {timeline.title!r}; make the prediction "
                "again"
            )
        path = folder / f"{timeline.title}.trace.json"
        document = json_of(path, f"the trace that `coarse predict` wrote beside {RUN_FILE}")
        events = document.get("traceEvents") if isinstance(document, dict) else None
        found = workers_of(events if isinstance(events, list) else [], str(path))
        workers = [RankedStep(step=worker) for worker in found if worker.backward]
        if not workers or not all(worker.step.gradients for worker in workers):
            raise ConfigError(f"{path}: no worker with gradients and backward in it; make the prediction again")
        num_workers = sum(who.startswith("worker ") for who, _ in timeline.places)
        yield timeline.title, workers if len(workers) > 1 else workers * max(1, num_workers)


def _demonstrated(folder: Path) -> Iterator[tuple[str, list[RankedStep]]]:
    """Yield (mode, workers) from the demo's record, with each worker's step of the median time."""
    path = folder / DEMO_FILE
    document = json_of(path, "the demo's record")
    assert isinstance(document, dict), "the run was read from it"
    for documents in document["runs"].values():
        summary, settings = documents[0].get("summary", {}), documents[0].get("settings", {})
        num_parameters = settings.get("num_parameters")
        if type(num_parameters) is not int or "mode" not in summary:
            raise ConfigError(
                f"{path}: it does not say the modes and how many parameters the model has (settings.num_parameters), "
                "so how much was summed is not known; run the demo again"
            )
        if summary["mode"] not in _SUMMING:
            raise ConfigError(
                f"{path}: a worker of mode {summary['mode']} moves more than sums of gradients, which the record does "
                f"not list; run the demo with modes of {', '.join(_SUMMING)}"
            )
        yield str(summary["mode"]), [_live_step(each, num_parameters, len(documents)) for each in documents]


def _live_step(document: Mapping[str, Any], num_parameters: int, num_workers: int) -> RankedStep:
    """Return a measured step with all gradients as one sum, sent at the end of backward.

    No record says when each gradient was ready.
    """
    steps = settled(document)
    middle = median_low(float(step["step_s"]) for step in steps)
    row = next(step for step in steps if float(step["step_s"]) == middle)
    forward_s, backward_s, wait_s = (float(row[f"{phase}_s"]) for phase in ("forward", "backward", "wait"))
    computed_s = forward_s + backward_s
    gradient = SentGradient(
        name="gradients", nbytes=num_parameters * _FP32_BYTES, begin_s=computed_s, end_s=computed_s + wait_s,
        ready_s=backward_s,
    )  # fmt: skip
    step = WorkerStep(
        name="", forward=(0.0, forward_s), backward=(forward_s, computed_s),
        gradients=[gradient] if num_workers > 1 else [],
    )  # fmt: skip
    return RankedStep(step=step, optimizer_s=float(row["optimizer_s"]))


def stale_files(folder: Path, modes: Iterable[str]) -> Iterator[Path]:
    """Yield the files that an earlier call left in a folder for these modes."""
    for mode in modes:
        yield from folder.glob(f"{mode}.[0-9]*.et")
