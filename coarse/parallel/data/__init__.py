"""Flat buckets of gradients, whichever framework made them: how they are planned, combined and agreed upon."""
