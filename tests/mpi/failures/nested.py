"""Worker 0 starts jobs of its own: by `coarse run`, and by an mpirun that knows nothing of this job."""

import subprocess
import sys
from pathlib import Path

import numpy as np

import coarse

coarse.init()
if len(sys.argv) > 1 and coarse.rank() == 0:
    mpirun = str(Path(sys.executable).with_name("mpirun"))
    commands = (
        [sys.executable, "-m", "coarse", "run", "--workers", "1", "--devices", "2", __file__],
        ["env", "-u", "COARSE_PARTITION", mpirun, "-n", "3", "--map-by", ":OVERSUBSCRIBE", sys.executable, __file__],
    )
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for job in jobs:
        print(job.communicate()[0], end="", flush=True)
        assert job.returncode == 0
coarse.push_pull(np.ones(3), "all come")
print(f"worker {coarse.rank()} of {coarse.size()}, {len(coarse.statistics()['devices'])} devices", flush=True)
