"""python -m tests.support.faults [SEED ...] [--seeds N] [--bugs]: runs of seeds by themselves, many, or with bugs
planted."""

import argparse
import sys

import torch

from coarse.errors import StorageError
from tests.support.faults.bugs import BUGS, seeds_to_find
from tests.support.faults.job import is_storage_error_due, run
from tests.support.faults.trainings import on_nodes, small, with_torch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, nargs="*")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="run so many")
    parser.add_argument("--bugs", action="store_true", help="how many seeds find each planted bug")
    given = parser.parse_args()
    if given.bugs:
        for bug, (training, _) in BUGS.items():
            print(f"{seeds_to_find(bug, small(2) if training == 'small' else with_torch())!s:>5}  {bug}", flush=True)
        return 0
    wrong = 0
    torch.set_num_threads(1)  # several wait for one another longer than they compute, where cores are busy
    plans = (small(1), small(2), small(3), on_nodes(), with_torch())
    for plan in plans:
        quiet, _ = run(plan, None)
        for seed in given.seed or range(given.seeds):
            trace: list[str] = []
            try:
                is_right = run(plan, seed, trace=trace)[0] == quiet
            except StorageError as error:
                is_right = is_storage_error_due(trace)
                trace.append(str(error))
            wrong += not is_right
            if given.seed or not is_right:
                came = "the same" if is_right else "OTHERS"
                print(f"{plan.num_workers} workers, seed {seed}: {came}: {trace}", flush=True)
    print(f"{wrong} of {len(plans) * len(given.seed or range(given.seeds))} runs ended otherwise")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
