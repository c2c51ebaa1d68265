"""Sums over all workers and other synchronisations: contents, order and memory."""
