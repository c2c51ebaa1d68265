"""Ranks that need not import a large library each: forked from processes that have imported it, and wait."""
