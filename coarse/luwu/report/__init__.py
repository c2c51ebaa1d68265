"""Answers of `coarse predict` for models in the network."""
