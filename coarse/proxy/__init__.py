"""Parameter proxy: the service on a memory device that synchronises tensors (COARSE III-D, IV-B)."""
