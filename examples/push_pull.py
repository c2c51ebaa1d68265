"""Arrays of numpy: the sum and the mean over all workers, added by memory devices.

    coarse run --workers 2 --devices 1 examples/push_pull.py
"""

import numpy as np

import coarse

coarse.init()
own = np.full(1_000_000, coarse.rank() + 1.0, np.float32)

mean = coarse.push_pull(own, "gradient")  # waits for all workers
print(f"worker {coarse.rank()} of {coarse.size()}: mean {mean[0]}")

handle = coarse.push_pull_async(own, "other", op=coarse.Sum)  # returns at once
busy = np.linalg.norm(own)  # computes while memory devices add
print(f"worker {coarse.rank()} of {coarse.size()}: sum {handle.wait()[0]}, norm {busy:.0f}")

shared = coarse.device_array("in place", (1000,), np.float32)  # lies in a device's memory: nothing is copied
shared[:] = coarse.rank()
print(f"worker {coarse.rank()} of {coarse.size()}: in place {coarse.push_pull(shared, 'in place')[0]}")
