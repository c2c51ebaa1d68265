"""State and outputs that are equal on all workers: variables, callback files, logs and predictions."""
