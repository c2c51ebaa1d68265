"""Sums over all workers, and whatever else is synchronised: what is combined, when and in which memory."""
