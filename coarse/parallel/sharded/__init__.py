"""Decisions of sharded training: units, caches, and the memory that they take."""
