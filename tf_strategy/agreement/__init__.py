"""Agreement of workers on variables, the files of callbacks, logs and predictions."""
