"""Resumable: what a PyTorch script has committed, and the way back to it."""
