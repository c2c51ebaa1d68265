"""What a program may call after shutdown: shutdown."""

import sys

import numpy as np

import coarse
from tests.support.claims import raises

coarse.init()
handle = coarse.push_pull_async(np.ones(3), "taken after shutdown")
coarse.shutdown()
calls = (
    coarse.init, coarse.rank, coarse.size, coarse.local_rank, coarse.barrier, coarse.statistics,
    lambda: coarse.push(np.ones(3), "x"), lambda: coarse.pull("x"), coarse.local_size,
    lambda: coarse.push_pull(np.ones(3), "x"), lambda: coarse.device_array("x", (3,), np.float32),
)  # fmt: skip
for call in calls:
    with raises(coarse.NotInitializedError, "after coarse.shutdown()"):
        call()
coarse.shutdown()
assert not coarse.is_initialized()
sys.stdout.write("refused\n")
