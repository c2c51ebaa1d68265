"""Decisions of parallel training, for any framework that computes: by data, or sharded."""
