"""Program of an emulated run's ranks: `mpirun -n RANKS python -m coarse.emulation.run ORDER RESULT`."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from coarse.emulation.failure import failure_of, write_failure
from coarse.emulation.order import EmulationOrder, parse_emulation_order
from coarse.emulation.runtime import EmulatedRank
from coarse.emulation.training import EmulatedWorker, gather_rows
from coarse.protocol.clock import WallClock
from coarse.runtime import end_job


def main(arguments: Sequence[str] = tuple(sys.argv[1:])) -> None:
    """Run a rank: memory devices serve, workers replay; worker 0 writes the rows.

    A rank that fails tells the launcher why, and ends the whole run.
    """
    order_path, result_path = map(Path, arguments)
    try:
        result = run_rank(parse_emulation_order(order_path.read_text()))
    except BaseException as error:
        failure = failure_of(error, rank=int(os.environ["PMIX_RANK"]), at_s=WallClock().now_s())
        write_failure(failure, result_path.parent)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        end_job()
        raise
    if result is not None:
        unfinished = result_path.with_suffix(".part")
        unfinished.write_text(json.dumps(result))
        unfinished.rename(result_path)


def run_rank(order: EmulationOrder) -> dict[str, object] | None:
    """Run a rank's part and return worker 0's report; None on all other ranks."""
    job = order.job()
    pool = {} if order.checked_pool is None else {"pool": {"path": order.checked_pool, "coherence": "checked"}}
    rank = EmulatedRank(job, order.partition(job), decide=order.decide(), settings=pool)
    runtime = rank.runtime
    runtime.start()
    if runtime.is_device_only:
        runtime.close()
        return None
    assert runtime.client_index is not None
    worker = EmulatedWorker(rank, order.gpu_of(runtime.client_index))
    rows = gather_rows(runtime.worker_comm, worker.train())
    runtime.close()
    report = rank.take_report()
    if report is None:
        return None
    return {
        "kind": "emulated",
        "num_transfers": report.num_transfers,
        "num_late": report.num_late,
        "worst_late_s": report.worst_late_s,
        "start_profile_s": rank.parts.start_profile_s,
        "measured_facts": [list(row) for row in rank.parts.measured_facts],
        "profiles": [asdict(profile) for profile in worker.profiles],
        "iterations": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    main()
