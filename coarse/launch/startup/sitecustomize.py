"""Runs in each worker of `coarse run` before its script, as Python's site module runs a file of this name.

It gives way to a sitecustomize of the user's own, leaves no trace on the path or in the environment of the worker's
children, and arranges that coarse.launch.worker is asked when the script starts MPI and when it ends. It imports
nothing of coarse before then.
"""

import atexit
import importlib.machinery
import importlib.util
import os
import sys


class _MpiFinder:
    """Finds mpi4py.MPI as others do, once, and has coarse look on while it is loaded."""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "mpi4py.MPI":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_watched(module: object) -> None:
                from coarse.launch import worker

                with worker.start_of_mpi():
                    load(module)  # type: ignore[arg-type]

            spec.loader.exec_module = load_watched  # type: ignore[method-assign]
        return spec


def _give_way() -> None:
    """Take this folder off the path, and run the sitecustomize that it has hidden, if there is one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != folder]
    rest = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    if not os.environ["PYTHONPATH"]:
        del os.environ["PYTHONPATH"]
    this = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError:
        sys.modules[__name__] = this


def _at_exit() -> None:
    if os.getpid() == _PROCESS and _OF_INTEREST & sys.modules.keys():
        from coarse.launch import worker

        worker.leave()


_PROCESS = os.getpid()
_OF_INTEREST = {"mpi4py.MPI", "torch.distributed"}
_give_way()
sys.meta_path.insert(0, _MpiFinder())
atexit.register(_at_exit)
