"""Random number generators that every process has: numpy's and random's."""

import random
from typing import Any

import numpy as np


def host_generators() -> dict[str, Any]:
    """Return the states of the global generators of random and numpy, as plain values."""
    version, internal, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()
    return {
        "random": [version, np.array(internal, np.uint32), gauss],
        "numpy": [kind, keys, place, has_gauss, cached],
    }


def set_host_generators(states: dict[str, Any]) -> None:
    """Restore the states that `host_generators` returned."""
    version, internal, gauss = states["random"]
    random.setstate((version, tuple(map(int, internal)), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys, *rest))
