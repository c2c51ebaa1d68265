"""Resumable: the states that a PyTorch script has committed, and their restore."""
