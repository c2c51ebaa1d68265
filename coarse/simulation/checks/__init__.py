"""Checks of a strategy: plans on random layouts, real sums in any order of messages, simulated iterations."""
