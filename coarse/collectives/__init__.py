"""Collectives that know the nodes: each byte once between two nodes, mapped memory within one.

`coarse.collectives.group.WorkerGroup` is where to start; it needs MPI, the files listed as pure do not.
"""
