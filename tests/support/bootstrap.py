"""Runs a test's program as `python program args` would, with stacks of all threads on SIGUSR1."""

import faulthandler
import runpy
import signal
import sys

import tests.support.bare_imports  # noqa: F401

if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
