"""Every worker's part of a dataset, and the end of the data, on which all workers agree."""
