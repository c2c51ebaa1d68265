"""Checks all claims about four workers of two nodes in one job: `sharding_claims.py FOLDER STEP...`.

The steps are those in which gradients are compared; trainings that are compared end with the last.
"""

import sys
from pathlib import Path

import torch

import coarse.torch as ct
from tests.mpi.sharding import equality_claims, memory_claims, mode_claims, own_mode_claims, situation_claims
from tests.support.claims import report_claims

if __name__ == "__main__":
    torch.set_num_threads(1)  # as many as there are workers compute on the same cores
    ct.init()
    folder = Path(sys.argv[1])
    equality_claims.spot_steps = tuple(map(int, sys.argv[2:]))
    groups = {
        "situations": situation_claims.claims(),
        "broken rules": situation_claims.mutated(),
        "modes": equality_claims.claims(folder),
        # last: the others go on without a worker
        "two nodes": [*own_mode_claims.CLAIMS, *mode_claims.claims(folder), *memory_claims.CLAIMS],
    }
    for name, claims in groups.items():
        (folder / name).mkdir(exist_ok=True)
        report_claims(claims, folder / name)
    ct.shutdown()
