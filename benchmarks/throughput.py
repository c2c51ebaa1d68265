"""Steps per second of sharded training over links of several rates, all modes in turn in one run for each rate.

python benchmarks/throughput.py

Starts `coarse run --cluster 2x2` once for each rate; this file is also what runs there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

import numpy as np

from benchmarks.sharded_contenders import PEER, UNTHROTTLED, Contender, contenders_named

if TYPE_CHECKING:  # ranks alone import torch
    from benchmarks.contenders.deepspeed import DeepSpeedTrainee
    from benchmarks.sharded_training import ShardedTrainee

DEFAULT_RATES = f"{UNTHROTTLED},1gbit,100mbit"
DEFAULT_CONTENDERS = (
    "fsdp-ring,fsdp-hierarchical,zeropp-hierarchical,fcdp-hierarchical,"
    "fsdp-ring-lora,fsdp-hierarchical-lora,zeropp-hierarchical-lora,fcdp-hierarchical-lora,deepspeed,deepspeed-lora"
)
_LIMIT_S = 3600


@dataclass(frozen=True, kw_only=True)
class ThroughputRow:
    """One contender at one rate; a step takes as long as on the slowest worker."""

    contender: str
    rate: str
    median_step_s: float
    fastest_step_s: float
    slowest_step_s: float
    weights_bytes: int
    trained_bytes: int

    @property
    def steps_per_s(self) -> float:
        """Of the median step."""
        return 1 / self.median_step_s


def parse_options() -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default=DEFAULT_RATES)
    parser.add_argument("--contenders", default=DEFAULT_CONTENDERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1, help="texts in a worker's batch")
    parser.add_argument("--name", default="throughput", help="of the file in benchmarks/results")
    parser.add_argument("--measure", metavar="FILE", help="what the driver tells the ranks: where rows go")
    return parser.parse_args()


def main() -> None:
    """Run every rate and report; with --measure, be one rank of such a run."""
    options = parse_options()
    contenders = contenders_named(options.contenders)
    if options.measure:
        (rate,) = options.rates.split(",")
        measure(contenders, rate, options.rounds, options.rows, Path(options.measure))
        return
    rows: list[ThroughputRow] = []
    with tempfile.TemporaryDirectory() as folder:
        for rate in options.rates.split(","):
            for names in jobs_of(contenders):
                rows += run_at(rate, names, options, Path(folder) / "rows.json")
    report(rows, options)


def jobs_of(contenders: Sequence[Contender]) -> list[str]:
    """The contenders of each job: ours take turns in one, the peer has a job of its own, if it is installed."""
    ours = ",".join(contender.name for contender in contenders if contender.mode != PEER)
    peers = ",".join(contender.name for contender in contenders if contender.mode == PEER)
    if peers and importlib.util.find_spec(PEER) is None:
        print(f"{peers}: not installed, left out", file=sys.stderr)
        peers = ""
    return [names for names in (ours, peers) if names]


def run_at(rate: str, names: str, options: argparse.Namespace, path: Path) -> list[ThroughputRow]:
    """Contenders of one job over links of one rate."""
    limit = [] if rate == UNTHROTTLED else ["--rate", rate]
    command = [
        *(sys.executable, "-m", "coarse", "run", "--cluster", "2x2", "--devices", "1", *limit),
        *(__file__, "--measure", str(path), "--rates", rate, "--contenders", names),
        *("--rounds", str(options.rounds), "--rows", str(options.rows)),
    ]
    subprocess.run(command, check=True, timeout=_LIMIT_S)
    return [ThroughputRow(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def measure(contenders: Sequence[Contender], rate: str, num_rounds: int, num_texts: int, path: Path) -> None:
    """One rank: each contender takes a step in each round; worker 0 writes the rows."""
    import coarse

    coarse.init()
    import torch

    torch.set_num_threads(1)
    trainees = [open_trainee(contender, num_texts) for contender in contenders]
    elapsed_s = np.array([[timed_step(trainee.step) for trainee in trainees] for _ in range(num_rounds + 1)])[1:]
    elapsed_s = coarse.push_pull(elapsed_s, "throughput/elapsed", coarse.Max)
    if coarse.rank() == 0:
        rows = [
            ThroughputRow(
                contender=trainee.contender.name,
                rate=rate,
                median_step_s=float(np.median(elapsed_s[:, index])),
                fastest_step_s=float(elapsed_s[:, index].min()),
                slowest_step_s=float(elapsed_s[:, index].max()),
                weights_bytes=trainee.weights.all_bytes,
                trained_bytes=trainee.weights.trained_bytes,
            )
            for index, trainee in enumerate(trainees)
        ]
        path.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")


def open_trainee(contender: Contender, num_texts: int) -> ShardedTrainee | DeepSpeedTrainee:
    """A contender's model, ready to take steps."""
    if contender.mode == PEER:
        from benchmarks.contenders.deepspeed import DeepSpeedTrainee

        return DeepSpeedTrainee(contender, num_texts)
    from benchmarks.sharded_training import ShardedTrainee

    return ShardedTrainee(contender, num_texts)


def timed_step(step: Callable[[], None]) -> float:
    """Seconds of a step that all workers begin together."""
    import coarse

    coarse.barrier()
    start_s = time.perf_counter()
    step()
    return time.perf_counter() - start_s


def report(rows: Sequence[ThroughputRow], options: argparse.Namespace) -> None:
    """Print the table and write the JSON file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json
    from benchmarks.sharded_tables import throughput_table

    found = [asdict(row) for row in rows]
    columns, lines = throughput_table(found)
    print_table("A training step, 2 nodes x 2 workers (measured, cluster in a box)", columns, lines)
    result = provenance("throughput.py", sys.argv[1:], 1) | {"num_rounds": options.rounds, "rows": found}
    print(f"\nwritten to {write_json(options.name, result)}")


if __name__ == "__main__":
    main()
