"""A strategy that plans otherwise on one rank: every worker hears of it. Argument: the tensor's name."""

import sys

import numpy as np

import coarse
from coarse.errors import MismatchError
from tests.support.claims import raises

coarse.init()
for _ in range(2):
    with raises(MismatchError, "'gradient'", "the strategy's plan() gives another plan than on", sys.argv[1]):
        coarse.push_pull(np.ones(1000, np.float32), "gradient")
coarse.barrier()  # a worker that leaves at once may be what another hears of first
coarse.shutdown()
