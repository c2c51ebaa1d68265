"""The folder of the file of decisions is removed while the job runs: the devices end all the same."""

import shutil
import sys

import numpy as np

import coarse

if __name__ == "__main__":
    coarse.init()
    coarse.push_pull(np.ones(5, np.float32), "x")
    if coarse.rank() == 0:
        shutil.rmtree(sys.argv[1])
    coarse.shutdown()
