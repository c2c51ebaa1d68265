"""Benchmarks: coarse beside its peers in one run, with the machine and the command in every result."""
