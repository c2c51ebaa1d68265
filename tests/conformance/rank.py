"""One rank of a conformance job: torch's own tests of its distributed package, one after the other.

    mpirun -n 8 python -m tests.conformance.rank coarse FOLDER TIMEOUT_S TEST...

torch's file runs each test in processes of its own, which it starts. Here mpirun has started the ranks, so a test's
method is called directly, as the file does in its children: after init_process_group, and between barriers. What
became of it is written to FOLDER. A rank whose test fails ends the job, since others may wait for it.
"""

import faulthandler
import json
import os
import sys
import traceback
import unittest
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

RANKS_FOLDER = "ranks"
_BARRIER_S = 60


def main(backend: str, folder: Path, timeout_s: float, names: list[str]) -> None:
    """Run the tests, and write a line about each."""
    import coarse.torch as ct

    ct.init()  # memory devices stay in here
    rank = ct.rank()
    warnings.simplefilter("ignore")
    test_class = test_class_of(backend, ct.size())
    with (folder / RANKS_FOLDER / f"{rank}.jsonl").open("a") as report:
        for name in names:
            faulthandler.dump_traceback_later(timeout_s)
            verdict, text = run_one(test_class, name, rank, backend, folder)
            faulthandler.cancel_dump_traceback_later()
            report.write(json.dumps({"test": name, "verdict": verdict, "text": text}) + "\n")
            report.flush()
            if verdict == "failed":
                os._exit(1)  # which ends the job


def test_class_of(backend: str, world_size: int) -> type:
    """torch's class as it is for Gloo; where a test asks for Gloo it gets the backend under test."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world_size), TEMP_DIR="/", INIT_METHOD="file:///")
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    import torch.distributed as dist
    from torch.testing._internal.distributed import distributed_test

    for name in ("init_process_group", "new_group"):
        setattr(dist, name, with_backend(getattr(dist, name), backend))

    bases = distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase

    class TestDistBackendWithMpi(*bases):
        def _barrier(self, *args, **kwargs):
            distributed_test.Barrier.sync(*args, **{"timeout": _BARRIER_S, **kwargs})

    return TestDistBackendWithMpi


def with_backend(function: Callable[..., object], backend: str) -> Callable[..., object]:
    """The function, called with another backend where Gloo was asked for."""

    def call(*args: object, **options: object) -> object:
        args = tuple(backend if value == "gloo" else value for value in args)
        options = {name: backend if value == "gloo" else value for name, value in options.items()}
        return function(*args, **options)

    return call


def run_one(test_class: type, name: str, rank: int, backend: str, folder: Path) -> tuple[str, str]:
    """What became of a test: passed, skipped or failed, and why."""
    method = getattr(test_class, name)
    if getattr(method, "__unittest_skip__", False):
        return "skipped", method.__unittest_skip_why__
    environ, streams = dict(os.environ), (sys.stdout, sys.stderr)
    try:
        set_up(name, folder)
        call(test_class, name, rank, backend)
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        reason = reason_of(end.code)
        return ("skipped", reason) if reason else ("failed", f"exit status {end.code}")
    except BaseException:
        return "failed", traceback.format_exc()
    finally:
        sys.stdout, sys.stderr = streams
        tear_down(environ)
    return "passed", ""


def set_up(name: str, folder: Path) -> None:
    """The folders that the ranks of a test share."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.distributed import distributed_test

    own = folder / name
    for part in ("barrier", "test_dir", "init_dir"):
        (own / part).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(own)
    os.environ["INIT_METHOD"] = f"file://{own}/init_dir/shared_init_file"
    distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]
    distributed_test.Barrier.barrier_id = 0
    common_utils.set_rng_seed()


def call(test_class: type, name: str, rank: int, backend: str) -> None:
    """What torch's `_run` does in a child."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.distributed_test import CUSTOM_PG_TIMEOUT, default_pg_timeout

    test = test_class(name)
    test.rank = rank
    test.file_name = os.environ["TEMP_DIR"] + "/store"
    dist.init_process_group(
        backend,
        init_method=f"file://{test.file_name}",
        world_size=int(test.world_size),
        rank=rank,
        timeout=timedelta(seconds=CUSTOM_PG_TIMEOUT.get(name, default_pg_timeout)),
    )
    test._barrier()
    getattr(test, name)()
    test._barrier()


def tear_down(environ: dict[str, str]) -> None:
    """As it was before the test."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(environ)
    dist.set_debug_level_from_env()
    torch._dynamo.reset()


def reason_of(code: object) -> str | None:
    """What an exit status of torch's skipping decorators means."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return next((skip.message for skip in TEST_SKIPS.values() if skip.exit_code == code), None)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
