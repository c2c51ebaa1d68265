"""Importing the face does not start MPI: a rank that fails before init() must be able to say so."""

import subprocess
import sys


def test_importing_coarse_torch_does_not_start_mpi():
    program = "import sys, coarse.torch; assert 'mpi4py.MPI' not in sys.modules, 'MPI was started'"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
