"""Members of a process group: their numbers among the workers."""

from datetime import timedelta

import torch.distributed as dist

from coarse.errors import ConfigError, StallError


def meet(store: dist.Store, rank: int, size: int, worker: int, timeout: timedelta, name: str) -> tuple[int, ...]:
    """Return `coarse.rank()` of each rank of the group, once all have come.

    Raises:
        ConfigError: ranks that are not workers of one job.
        StallError: ranks that have not come within the group's timeout.
    """
    store.set(f"worker/{rank}", str(worker))
    keys = [f"worker/{member}" for member in range(size)]
    try:
        store.wait(keys, timeout)
    except dist.DistStoreError as error:
        absent = tuple(member for member, key in enumerate(keys) if not store.check([key]))
        raise StallError(
            f"{name}: ranks {list(absent)} have not come within {timeout.total_seconds():g} s; let all ranks call "
            "init_process_group and new_group in one order, or raise the timeout",
            missing=absent,
        ) from error
    workers = tuple(int(store.get(key)) for key in keys)
    if len(set(workers)) < size:
        raise ConfigError(
            f"{name}: its {size} ranks are the workers {list(workers)} of coarse; start the script by coarse run or "
            "mpirun, whose job has a worker for each rank, not by torchrun"
        )
    return workers
