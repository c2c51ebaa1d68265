"""Snapshots: memory devices hold and write a checkpoint during training; restores (COARSE IV-A)."""
