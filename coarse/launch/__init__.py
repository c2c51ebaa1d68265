"""How jobs start and end: mpirun, the watching of ranks, the program of a memory device."""
