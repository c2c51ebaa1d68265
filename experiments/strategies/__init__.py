"""Strategies of one's own, a file each, for `coarse run --mode`, predict, emulate and sweep; see docs/strategies.md."""
