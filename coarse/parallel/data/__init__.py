"""Flat buckets of gradients of any framework: plans, combination and agreement."""
