"""Take a snapshot of states, or load it and compare with what was taken.

Arguments: take or load, and the snapshot's folder.
"""

import sys

import numpy as np

import coarse

SHAPES = {"weights": (300, 1001), "bias": (1001,)}


def values(name: str) -> np.ndarray:
    """Return numbers that follow from a name."""
    return np.random.default_rng([*name.encode()]).standard_normal(SHAPES[name]).astype(np.float32)


def main() -> None:
    what, folder = sys.argv[1:]
    coarse.init()
    if what == "take":
        for name, shape in SHAPES.items():
            coarse.state_array(name, shape, np.float32)[...] = values(name)
        coarse.snapshot(folder, step=7).wait()
    else:
        checkpoint = coarse.restore(folder)
        assert checkpoint.step == 7
        for name in SHAPES:
            np.testing.assert_array_equal(checkpoint.tensors[name].array, values(name))
    print(f"worker {coarse.rank()}: {what} is right", flush=True)


if __name__ == "__main__":
    main()
