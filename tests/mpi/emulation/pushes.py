"""Pushes arrays on an emulated machine, and writes what they came to and how long they took.

pushes.py FOLDER KIND
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

import coarse
from coarse.session import current

SIZES = (1024, 1 << 18, 1 << 22)
"""Elements of float32."""


def wait_for_each() -> list[float]:
    """One after the other, each waited for."""
    return [float(coarse.push_pull(array, f"a{number}")[0]) for number, array in enumerate(arrays())]


def wait_for_all() -> list[float]:
    """All at once."""
    handles = [coarse.push_pull_async(array, f"a{number}") for number, array in enumerate(arrays())]
    return [float(handle.wait()[0]) for handle in handles]


def look_until_done() -> list[float]:
    """Asked for again and again."""
    handles = [coarse.push_pull_async(array, f"a{number}") for number, array in enumerate(arrays())]
    while not all(handle.done() for handle in handles):
        pass
    return [float(handle.wait()[0]) for handle in handles]


def sleep_between() -> list[float]:
    """A model whose compute is sleep, unlike on each worker."""
    found = []
    for number, array in enumerate(arrays()):
        time.sleep(100.0 * (1 + coarse.rank()))
        found.append(float(coarse.push_pull(array, f"a{number}")[0]))
    return found


def arrays() -> list[np.ndarray]:
    """This worker's."""
    return [np.full(size, coarse.rank() + 1.0, np.float32) for size in SIZES]


def main() -> None:
    """Three rounds of a kind; of each the sums and when it ended."""
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    coarse.init()
    clock = current().require_client().link.job_clock
    found = []
    for _ in range(3):
        began_s = clock.now_s()
        found.append([globals()[kind](), clock.now_s() - began_s])
    (folder / f"{coarse.rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
