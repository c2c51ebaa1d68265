"""Program of a forked rank, which an interpreter would have been started with."""

import os
import runpy
import sys

from coarse.launch.startup import sitecustomize


def run() -> None:
    """Run sys.argv[1:], `SCRIPT ARGUMENT ...` or `-m MODULE ARGUMENT ...`, as a new interpreter does."""
    from coarse.launch.exit_reporter import STARTUP

    if STARTUP in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # a worker
        sitecustomize.begin()
    if sys.argv[1] == "-m":
        _, _, module, *arguments = sys.argv
        sys.argv = [module, *arguments]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
