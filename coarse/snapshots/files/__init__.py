"""Files of snapshots: a snapshot's content, the checkpoint on disk, and its restore (COARSE IV-A)."""
