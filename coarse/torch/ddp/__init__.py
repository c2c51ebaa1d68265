"""Data-parallel training on torch: DistributedOptimizer and what it is made of."""
