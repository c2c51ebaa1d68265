"""One feature in one room: what a snapshot holds, the checkpoint on disk, and its way back (COARSE IV-A)."""
