"""Worker 0 prints the addresses at which ranks of its job listen to TCP."""

import psutil

import coarse

coarse.init()
coarse.barrier()
if coarse.rank() == 0:
    mpirun = psutil.Process().parents()[1]
    ranks = mpirun.children(recursive=True)
    assert len(ranks) >= 3
    found = [port.laddr for rank in ranks for port in rank.net_connections("inet") if port.status == "LISTEN"]
    print(found, flush=True)
coarse.barrier()
