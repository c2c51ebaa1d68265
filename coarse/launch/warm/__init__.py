"""Ranks that need not import a large library each: forked from a waiting process that has it."""
