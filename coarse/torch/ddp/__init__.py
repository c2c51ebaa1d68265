"""Data-parallel training on torch: DistributedOptimizer and its parts."""
