"""Worker 0 shuts down while worker 1 trains on: it waits for nobody, and gives back what it had opened."""

import os
import time
from pathlib import Path

import numpy as np

import coarse

_TRAINS_ON_S = 4.0


def opened() -> list[str]:
    """The descriptors of processes and of device memory that this process has; a mapping holds one of its own."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(descriptor))
        except FileNotFoundError:  # of the listing itself
            continue
    return [name for name in found if "pidfd" in name or "memfd:coarse" in name]


coarse.init()
coarse.push_pull(np.ones(4, np.float32), "together")
before = opened()
assert any("pidfd" in name for name in before)
if coarse.rank() == 1:
    time.sleep(_TRAINS_ON_S)
began_s = time.monotonic()
coarse.shutdown()
assert time.monotonic() - began_s < _TRAINS_ON_S / 2
assert len(set(opened())) == len(opened()) < len(before), (before, opened())
assert not any("pidfd" in name for name in opened()), opened()
print("left")
