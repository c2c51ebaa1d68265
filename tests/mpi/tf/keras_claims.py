"""Checks the claims about strategies of several modules in one job: `keras_claims.py FOLDER MODULE...`."""

import sys
from importlib import import_module

import coarse
from tests.support.claims import report_claims

NAMES = {
    "keras": "tests.mpi.tf.keras_strategy_claims",
    "optimizer": "tests.mpi.tf.keras_optimizer_claims",
    "api": "tests.mpi.tf.api_claims",
    "dual": "tests.mpi.tf.dual_claims",
}
"""The modules that may be named."""


def main(folder: str, *names: str) -> None:
    """Report every claim of the modules."""
    coarse.init()  # memory devices stay in here, and import no TensorFlow
    modules = [import_module(NAMES[name]) for name in names]
    report_claims([claim for module in modules for claim in module.CLAIMS], folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
