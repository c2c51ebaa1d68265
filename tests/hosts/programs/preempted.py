"""Add up the numbers of steps until SIGUSR1 comes, keep what there is, and have Slurm start the job again.

Arguments: steps to make once it was started again, and the file that keeps the step and the sum.
"""

import signal

asked: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, _: asked.append(number))  # before imports, in which the signal may come

import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

import coarse  # noqa: E402

STEP_S = 0.05


def main() -> None:
    more, kept = int(sys.argv[1]), Path(sys.argv[2])
    coarse.init()
    worker, was_kept = coarse.rank(), kept.exists()
    step, total = map(int, kept.read_text().split()) if was_kept else (0, 0)
    last = step + more if was_kept else None
    coarse.barrier()  # all have read what one of them will write
    print(f"worker {worker} begins at step {step}", flush=True)
    while step != last:
        found = coarse.push_pull(np.array([step, len(asked)], np.int64), "step", op=coarse.Sum)
        if found[1]:
            break  # all workers see in the same step that one of them was asked
        step, total = step + 1, total + int(found[0])
        time.sleep(STEP_S)
    if worker == 0:
        kept.write_text(f"{step} {total}")
    coarse.barrier()
    print(f"worker {worker} {'is done' if step == last else 'stops'} at step {step} with {total}", flush=True)
    if step != last and worker == 0:
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)


if __name__ == "__main__":
    main()
