"""Ranks that need not import a large library each: forked from a process that has imported it, and waits."""
