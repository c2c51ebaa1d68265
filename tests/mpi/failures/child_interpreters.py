"""Under `coarse run`, interpreters that want MPI and that a worker starts, before and after it has started MPI."""

import multiprocessing
import subprocess
import sys

import numpy as np

import coarse


def child(*_: object) -> str:
    """What becomes of MPI and of coarse.init() in an interpreter that is no rank."""
    from mpi4py import MPI

    try:
        coarse.init()
    except coarse.NotInitializedError as refused:
        return f"{MPI.Is_initialized()} {refused}"
    return "it has joined"


def require_none_below(*ways: str) -> None:
    for way in ways:
        if way == "subprocess":
            command = [sys.executable, __file__, "child"]
            said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
        else:
            with multiprocessing.get_context(way).Pool(1) as pool:
                said = pool.apply_async(child).get(20)
        assert said.startswith("False this interpreter was started by a rank's script"), (way, said)


if __name__ == "__main__":
    if sys.argv[1:] == ["child"]:
        print(child())
        sys.exit(0)
    require_none_below("spawn", "forkserver")
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    require_none_below("spawn", "subprocess")
    coarse.init()
    require_none_below("spawn", "subprocess")
    assert coarse.push_pull(np.full(3, coarse.rank(), np.float32), "mean").tolist() == [0.5] * 3
    print(f"worker {coarse.rank()} ends", flush=True)
