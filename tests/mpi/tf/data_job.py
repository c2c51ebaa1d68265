"""Checks the claims of several modules in one job: `data_job.py FOLDER MODULE...`."""

import sys
from importlib import import_module

import coarse
from tests.support.claims import report_claims


def main(folder: str, *names: str) -> None:
    """Report every claim of the modules."""
    coarse.init()  # memory devices stay in here, and import no TensorFlow
    modules = [import_module(f"tests.mpi.tf.{name}") for name in names]
    report_claims([claim for module in modules for claim in module.CLAIMS], folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
