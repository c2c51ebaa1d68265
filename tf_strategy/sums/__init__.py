"""Sums over all workers, and other synchronisation: what is combined, when and in which memory."""
