"""Table behind the proxy: versions, regions, snapshots and checkpoints (COARSE III-D, IV-A)."""
