"""Program that starts mpirun beside torchrun: `beside.py JOB FIRST WORKERS PARTITION [HOST...]`.

See coarse.transport.torchrun_start. It starts memory devices, and placeholders in the workers' stead, and ends as they
end. FIRST is PID@HOST of the first worker, for which placeholders wait no longer once it is gone. The HOSTs of several
nodes get equally many ranks.
"""

import os
import sys

from coarse.errors import CoarseError, ConfigError
from coarse.launch.cluster.shape import hosts_of_ranks
from coarse.launch.mpirun import (
    ON_ONE_MACHINE,
    missing_defaults,
    parameter_files,
    run_forwarding_signals,
    usable_mpirun,
)
from coarse.launch.rank_exits import Departures
from coarse.launch.training_run import TrainingRun
from coarse.launch.watch import Watch
from coarse.protocol.partition_file import stated_partition

PLACEHOLDER_MODULE = "coarse.launch.placeholder"
_SHARING = {"SLURM_OVERLAP": "1"}
"""Variables of mpirun's daemons, which it starts by srun in an allocation of Slurm. If torchrun is a step itself,
that step has all processors, and another one that does not share them would wait for its end."""


def main(job: str, first: str, num_workers: int, partition: str, *nodes: str) -> int:
    """Run the job to its end and return its exit status."""
    request = TrainingRun(
        script=PLACEHOLDER_MODULE,
        is_module=True,
        arguments=(job, first),
        partition=partition,
        hosts=hosts_of_ranks(len(stated_partition(partition).places), nodes) if nodes else (),
    )
    if request.table.num_workers != num_workers:
        raise ConfigError(
            f"torchrun started {num_workers} workers, but the configuration's partition {partition!r} has "
            f"{request.table.num_workers}; change --nproc-per-node, or take the partition out of the file and let "
            "[launch] devices say how many memory devices a node gets"
        )
    watch = Watch(Departures(request.num_ranks, request.light_ranks()))
    if not nodes:
        return run_forwarding_signals(request.argv(ON_ONE_MACHINE), os.environ, watch)
    lacks = missing_defaults(parameter_files(usable_mpirun(sys.executable, os.environ)), os.environ)
    return run_forwarding_signals(request.argv(()), {**os.environ, **lacks, **_SHARING}, watch)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
    except CoarseError as error:
        sys.stderr.write(f"coarse: {error}\n")
        sys.exit(2)
