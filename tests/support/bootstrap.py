"""Runs a test's program as `python program args` would, with stacks of all threads on SIGUSR1.

Where COARSE_TEST_JOINS_FIRST is set, ranks join the job before, so that memory devices serve without what the program
imports. Where COARSE_TEST_GPUS is set, GPUs are stand-ins (tests/support/gpu_stand_in.py), made by these arguments.
"""

import faulthandler
import os
import runpy
import signal
import sys

import tests.support.bare_imports


def run() -> None:
    """Run the program that the arguments begin with, in this process."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.argv = sys.argv[1:]
    if "COARSE_TEST_GPUS" in os.environ:
        import json

        from coarse.gpu.available import use
        from tests.support.gpu_stand_in import StandInGpus

        use(StandInGpus(**json.loads(os.environ["COARSE_TEST_GPUS"])))
    if "COARSE_TEST_JOINS_FIRST" in os.environ:
        import coarse

        coarse.init()
    runpy.run_path(sys.argv[0], run_name="__main__")


def run_forked() -> None:
    """Run it where libraries were imported before; the program may import what they went without."""
    tests.support.bare_imports.show()
    run()


if __name__ == "__main__":
    run()
