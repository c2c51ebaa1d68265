"""The ways to sum gradients that `sync.py` compares, behind one protocol."""
