"""Time of a training step under TensorFlow: coarse's modes beside MultiWorkerMirroredStrategy and no synchronisation.

python benchmarks/tf_step.py

Starts every contender's processes: two workers each, and two memory devices for coarse's. They take turns in rounds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np

from benchmarks.cpu_clocks import cpu_s_of
from benchmarks.memory_check import require_memory
from benchmarks.provenance import provenance
from benchmarks.rendering import print_table, write_json
from benchmarks.tf_contenders import COARSE, CONTENDERS, NUM_DEVICES, NUM_WORKERS, UNSYNCHRONISED, Turn, turns_of
from benchmarks.tf_jobs import Job
from benchmarks.tf_overlap import OverlapRow, overlap_row, overlap_table
from benchmarks.tf_rows import StepRow, step_rows, step_table

DEFAULT_ROWS, QUICK_ROWS = "8,64", "8"
_STEPS_PER_TURN = 2
_OVERLAP_THREADS = (1, 2, 4)
"""Numbers of inter-op threads with which it is measured how far pushing overlaps backward."""
_OVERLAP_STEPS = 10
_WORKER_BYTES = 1.4 * 2**30
"""Of a worker's process, about: TensorFlow itself, and a few copies of the parameters."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure; `rows` are the sizes of a worker's batch."""

    rows: list[int]
    contenders: list[str]
    num_rounds: int
    num_inter_op_threads: int
    name: str


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help=f"sizes of a worker's batch, default {DEFAULT_ROWS}")
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--inter-op", type=int, default=2, help="TensorFlow's threads of that name, default 2")
    parser.add_argument("--quick", action="store_true", help="three rounds of one batch size, to see that it works")
    parser.add_argument("--name", default="tf-step", help="of the file in benchmarks/results")
    given = parser.parse_args(arguments)
    rows = given.rows or (QUICK_ROWS if given.quick else DEFAULT_ROWS)
    contenders = [name.strip() for name in given.contenders.split(",")]
    if unknown := set(contenders) - set(CONTENDERS):
        parser.error(f"unknown contenders {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    if UNSYNCHRONISED not in contenders:
        parser.error(f"'{UNSYNCHRONISED}' must be among the contenders: what the others add is counted from it")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in rows.split(",")):
        parser.error(f"--rows is a list of positive numbers like {DEFAULT_ROWS}, got {rows!r}")
    for option, number in (("--rounds", given.rounds), ("--inter-op", given.inter_op)):
        if number < 1:
            parser.error(f"{option} is a number of at least 1, got {number}")
    return Options(
        rows=[int(size) for size in rows.split(",")],
        contenders=contenders,
        num_rounds=3 if given.quick else given.rounds,
        num_inter_op_threads=given.inter_op,
        name=given.name,
    )


def main() -> None:
    """Start all contenders, let them take turns, and report."""
    options = parse_options()
    require_memory(int(len(options.contenders) * NUM_WORKERS * _WORKER_BYTES), "this comparison")
    with open_jobs(options.contenders, options.num_inter_op_threads) as jobs:
        rows = [row for size in options.rows for row in measure(jobs, size, options)]
        for job in jobs.values():
            require_synchronised(job)
        versions = jobs[UNSYNCHRONISED].versions
    report(rows, overlap(options), versions, options)


@contextmanager
def open_jobs(contenders: Sequence[str], num_inter_op_threads: int) -> Iterator[dict[str, Job]]:
    """Each contender's processes, by its name; started one after another, and ended whatever happens."""
    jobs: dict[str, Job] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in contenders:
                print(f"{name}, {num_inter_op_threads} inter-op threads: starts", file=sys.stderr, flush=True)
                jobs[name] = Job(name, Path(folder), "--inter-op", str(num_inter_op_threads))
            yield jobs
            for job in jobs.values():
                job.end()
        finally:
            for job in jobs.values():
                job.kill()


def measure(jobs: dict[str, Job], size: int, options: Options) -> list[StepRow]:
    """Every turn of every round with one size of a worker's batch; a round before them is not counted."""
    turns = turns_of(options.contenders)
    samples = np.array([[take(jobs, turn, size) for turn in turns] for _ in range(options.num_rounds + 1)])[1:]
    print(f"{size} rows a worker: {options.num_rounds} rounds", file=sys.stderr, flush=True)
    gradient_bytes = jobs[UNSYNCHRONISED].num_parameters * 4
    return step_rows(size, gradient_bytes, turns, samples[:, :, 0], samples[:, :, 1])


def overlap(options: Options) -> list[OverlapRow]:
    """How far coarse's pushes overlap backward, with the largest batch and several numbers of inter-op threads."""
    if COARSE not in options.contenders:
        return []
    rows, size = [], max(options.rows)
    for num_threads in _OVERLAP_THREADS:
        with open_jobs([COARSE], num_threads) as jobs:
            answers = jobs[COARSE].ask(ask="marks", rows=size, steps=_OVERLAP_STEPS)
        steps = [step for answer in answers for step in answer["steps"]]
        rows.append(overlap_row(num_threads, size, steps))
    return rows


def take(jobs: dict[str, Job], turn: Turn, size: int) -> tuple[float, float]:
    """Seconds of a step on the slower worker, and CPU seconds of a step over all of the job's processes."""
    job = jobs[turn.contender]
    process_ids = job.process_ids()
    cpu_s = cpu_s_of(process_ids)
    answers = job.ask(ask="train", loop=turn.loop, rows=size, steps=_STEPS_PER_TURN)
    cpu_s = cpu_s_of(process_ids) - cpu_s
    return max(answer["elapsed_s"] for answer in answers), cpu_s / (_STEPS_PER_TURN + 1)


def require_synchronised(job: Job) -> None:
    """Raise ValueError unless both workers end with equal weights, or with different ones if they exchange nothing."""
    digests = {answer["digest"] for answer in job.ask(ask="digest")}
    if (len(digests) == 1) == (job.contender == UNSYNCHRONISED):
        raise ValueError(
            f"{job.contender}: the workers' weights have {len(digests)} different digests after training; "
            + ("each trains on data of its own, so they must differ" if len(digests) == 1 else "they must be equal")
        )


def report(rows: Sequence[StepRow], overlaps: Sequence[OverlapRow], versions: dict[str, str], options: Options) -> None:
    """Print the tables and write the JSON file."""
    found, overlap_found = [row.as_json() for row in rows], [row.as_json() for row in overlaps]
    megabytes = rows[0].gradient_bytes / 2**20
    title = (
        f"Milliseconds of a training step of a Keras model ({NUM_WORKERS} workers, {NUM_DEVICES} memory devices, "
        f"{megabytes:.1f} MiB of gradients, measured)"
    )
    print_table(title, *step_table(found))
    if overlap_found:
        print_table("Milliseconds since a step's begin, coarse, medians (measured)", *overlap_table(overlap_found))
    result = provenance("tf_step.py", sys.argv[1:], 1)
    result["versions"] = {**result["versions"], **versions}  # type: ignore[dict-item]
    result |= {
        "num_workers": NUM_WORKERS,
        "num_devices": NUM_DEVICES,
        "num_parameters": rows[0].gradient_bytes // 4,
        "num_inter_op_threads": options.num_inter_op_threads,
        "rows": found,
        "overlap": overlap_found,
    }
    print(f"\nwritten to {write_json(options.name, result)}")


if __name__ == "__main__":
    main()
