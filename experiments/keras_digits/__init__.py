"""Handwritten digits, learnt by a small Keras model under three strategies."""
