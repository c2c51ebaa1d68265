"""What all workers have or see alike: variables, the files of callbacks, logs and predictions."""
