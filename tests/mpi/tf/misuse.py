"""Misuse of CoarseStrategy, claim after claim in one job: `misuse.py FOLDER`; MPI rank 2 is a memory device."""

import os
import sys
from contextlib import suppress
from importlib import import_module

import coarse
from tests.support.claims import report_claims

CONFIG = {"partition": "2:1", "startup_timeout_s": 170.0}
"""The device waits until the workers have imported TensorFlow."""
NO_DEVICES = CONFIG | {"partition": "worker,worker,worker"}

if __name__ == "__main__":
    if os.environ["PMIX_RANK"] == "2":  # it needs no TensorFlow
        with suppress(coarse.ConfigError):
            coarse.init(NO_DEVICES)
        coarse.init(CONFIG)
    report_claims(import_module("tests.mpi.tf.misuse_claims").CLAIMS, sys.argv[1])
