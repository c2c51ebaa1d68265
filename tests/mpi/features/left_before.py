"""Worker 1 leaves before any device has heard of snapshots; worker 0 takes one then, and is told."""

import sys

import numpy as np

import coarse
from coarse.session import current

coarse.init()
if coarse.rank() == 0:
    protocol = current().require_client().protocol
    current().require_client().link.wait_until(lambda: protocol.left == [1], 30.0)
    handle = coarse.snapshot(sys.argv[1], step=1, tensors={"w": np.ones(3)})
    try:
        handle.wait(30.0)
    except coarse.SnapshotError as error:
        print(f"told: {error}", flush=True)
