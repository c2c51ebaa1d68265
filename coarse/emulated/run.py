"""The program of an emulated run's ranks: `mpirun -n RANKS python -m coarse.emulated.run ORDER RESULT`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from coarse.emulated.order import parse_run_order
from coarse.emulated.rows import gather_rows
from coarse.emulated.runtime import EmulatedRuntime
from coarse.emulated.training import EmulatedWorker


def main(arguments: Sequence[str] = tuple(sys.argv[1:])) -> None:
    """Memory devices serve, workers replay; worker 0 writes the rows."""
    order_path, result_path = map(Path, arguments)
    order = parse_run_order(order_path.read_text())
    job = order.job()
    runtime = EmulatedRuntime(job, order.partition(job), dilation=order.dilation)
    try:
        runtime.start()
        if runtime.is_device_only:
            runtime.close()
            return
        rows = gather_rows(runtime.worker_comm, EmulatedWorker(runtime).train())
        runtime.close()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        runtime.abort(str(error))
        raise
    counted_s = min((row.begin_s for row in rows if row.iteration), default=0.0)
    punctuality = runtime.take_punctuality(counted_s)
    if punctuality is not None:
        num_transfers, num_overrun, worst_late_s = punctuality
        result = {
            "kind": "emulated",
            "dilation": order.dilation,
            "num_transfers": num_transfers,
            "num_overrun": num_overrun,
            "worst_late_s": worst_late_s,
            "iterations": [asdict(row) for row in rows],
        }
        unfinished = result_path.with_suffix(".part")
        unfinished.write_text(json.dumps(result))
        unfinished.rename(result_path)


if __name__ == "__main__":
    main()
