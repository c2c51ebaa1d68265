"""What it costs in accuracy that one worker stands for all: the same jobs simulated so, and with every worker.

python benchmarks/one_for_all.py (half an hour; 128 workers take two thirds of it)

The simulator takes every worker of up to 64, and one for all beyond (docs/predict.md). Here both simulate the same job:
the routes, the split and the sizes are those that the one has chosen. All numbers are of the kind simulated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # so that the script runs from any folder

from benchmarks.simulator_speed import Case, scenario_of
from coarse.simulation.job import Job
from coarse.simulation.scenario import Scenario
from coarse.simulation.training import simulate

PER_NODE = 4
SHARES = {"allreduce": (0.0,), "coarse": (1.0, 0.8)}
"""Parts of the gradients that go to the memory devices."""


def main() -> None:
    """Print the table and write the JSON file."""
    from benchmarks.provenance import provenance
    from benchmarks.rendering import print_table, write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="8,16,32,64,128", help="numbers of workers, multiples of 4")
    options = parser.parse_args()
    rows = [row for text in options.workers.split(",") for row in rows_of(int(text))]
    print_table(
        "An iteration of BERT-large, batch 2, on nodes of aws-p3: every worker simulated, and one for all",
        ["", "workers", "each, ms", "one, ms", "of the iteration", "of its communication"],
        [cells(row) for row in rows],
    )
    result = provenance("one_for_all.py", sys.argv[1:], 1) | {"kind": "simulated", "rows": rows}
    print(f"\nwritten to {write_json('one-for-all', result)}")


def rows_of(num_workers: int) -> Iterator[dict[str, object]]:
    """One for each mode and share."""
    for mode, shares in SHARES.items():
        case = Case(preset="aws-p3", gpu="v100", mode=mode, num_workers=num_workers)
        scenario = scenario_of(case, num_nodes=num_workers // PER_NODE)
        for share in shares:
            one, each = both(scenario, share)
            reports = [simulate(job) for job in (one, each)]
            yield {
                "mode": mode.value,
                "share": share,
                "num_workers": num_workers,
                "one_s": reports[0].iteration_s,
                "each_s": reports[1].iteration_s,
                "iteration_error": reports[0].iteration_s / reports[1].iteration_s - 1,
                "exposed_error": reports[0].exposed_s / reports[1].exposed_s - 1,
            }


def both(scenario: Scenario, share: float) -> tuple[Job, Job]:
    """(one for all, every worker): the same job, a share of whose gradients goes to the devices."""
    scenario = replace(scenario, collective="ring")
    one = replace(scenario, stepwise_ranks=1).job()
    each = replace(scenario, stepwise_ranks=scenario.num_workers).job_of(one.facts, one.round)
    num_proxied = round(share * len(one.gradients))
    first, second = (replace(job.with_split(num_proxied), num_iterations=2) for job in (one, each))
    return first, second


def cells(row: dict[str, object]) -> Sequence[str]:
    """A row of the table."""
    what = f"{row['mode']}, {row['share']:.0%} to devices" if row["share"] else str(row["mode"])
    times = [f"{row[key] * 1e3:.1f}" for key in ("each_s", "one_s")]  # type: ignore[operator]
    errors = [f"{row[key]:+.1%}" for key in ("iteration_error", "exposed_error")]
    return [what, str(row["num_workers"]), *times, *errors]


if __name__ == "__main__":
    main()
