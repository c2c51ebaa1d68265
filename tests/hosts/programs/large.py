"""Push and pull arrays under ever new names until memory is used up; print the error that says so.

Arguments: bytes of an array, and how many there are at most.
"""

import sys

import numpy as np

import coarse


def main() -> None:
    nbytes, most = int(sys.argv[1]), int(sys.argv[2])
    coarse.init()
    array = np.ones(nbytes // 4, np.float32)
    try:
        for number in range(most):
            coarse.push_pull(array, f"array/{number}", op=coarse.Sum)
    except coarse.CoarseError as error:
        print(f"worker {coarse.rank()} got {type(error).__name__} at array {number}: {error}", flush=True)
        raise


if __name__ == "__main__":
    main()
