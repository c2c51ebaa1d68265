"""Snapshots: memory devices hold and write a checkpoint while training goes on, and its way back (COARSE IV-A)."""
