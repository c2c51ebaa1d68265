"""Start and end of jobs: mpirun, the watching of ranks, the program of a memory device."""
