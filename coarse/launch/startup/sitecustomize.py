"""Start of each worker of `coarse run` before its script: Python's site module runs such a file.

It arranges that coarse.launch.worker is asked when the script starts MPI and when it ends, in interpreters that the
script starts too, and gives way to a sitecustomize of the user's own. It imports nothing of coarse before then.
"""

import atexit
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

_MPI = "mpi4py.MPI"


class _MpiFinder:
    """Finder of mpi4py.MPI, like others, that has coarse look on while it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MPI:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _watched(spec.loader.exec_module)  # type: ignore[method-assign, assignment]
        return spec


def _watched(load: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def load_watched(module: ModuleType) -> None:
        try:
            from coarse.launch import worker
        except ImportError:  # an interpreter of the script's that has no coarse
            return load(module)
        with worker.start_of_mpi():
            load(module)

    return load_watched


def _at_exit() -> None:
    if os.getpid() == _process and _MPI in sys.modules:
        from coarse.launch import worker

        worker.leave()


def _give_way() -> None:
    """Take this folder off the path, and run the sitecustomize that it has hidden, if there is one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != folder]
    this = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, this)


def begin() -> None:
    """Look on from now on, in this process."""
    global _process
    _process = os.getpid()
    sys.meta_path.insert(0, _MpiFinder())
    atexit.register(_at_exit)


_process = 0
if __name__ == "sitecustomize":
    begin()
    _give_way()
