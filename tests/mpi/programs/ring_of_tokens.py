"""Each rank's number goes once around the ring; rank 0 says whether everybody saw every number."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, num_ranks = comm.Get_rank(), comm.Get_size()
seen = np.zeros(num_ranks, np.int64)
token = np.array([rank], np.int64)
for _ in range(num_ranks):
    arrived = np.empty_like(token)
    comm.Sendrecv(token, dest=(rank + 1) % num_ranks, recvbuf=arrived, source=(rank - 1) % num_ranks)
    token = arrived
    seen[token[0]] += 1
complete = np.array([(seen == 1).all()], np.int32)
comm.Allreduce(MPI.IN_PLACE, complete, op=MPI.MIN)
if rank == 0:
    print(f"{num_ranks} ranks, complete {bool(complete[0])}")
