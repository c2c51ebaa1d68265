"""A job of several workers in one process, whose faults are drawn from a seed: commits, deaths, restarts, damage."""
