"""Push and pull until so many seconds are over, or an error comes; tell when the first sum is there, and the error.

Arguments: seconds, and the path before the number of the worker of files that say that it has begun.
"""

import sys
import time
from pathlib import Path

import numpy as np

import coarse

LENGTH = 300_000


def main() -> None:
    seconds, began = float(sys.argv[1]), sys.argv[2]
    coarse.init()
    worker, workers = coarse.rank(), coarse.size()
    until_s, step = time.monotonic() + seconds, 0
    try:
        while True:
            over = np.array([time.monotonic() > until_s], np.int32)
            if coarse.push_pull(over, "over", op=coarse.Max)[0]:
                break
            found = coarse.push_pull(np.full(LENGTH, worker + step, np.float32), "x", op=coarse.Sum)
            assert (found == workers * step + workers * (workers - 1) // 2).all()
            step += 1
            if step == 1:
                Path(f"{began}{worker}").touch()
        print(f"worker {worker} ended well after {step} steps", flush=True)
    except coarse.CoarseError as error:
        print(f"worker {worker} at {time.time():.1f} got {type(error).__name__}: {error}", flush=True)
        raise


if __name__ == "__main__":
    main()
