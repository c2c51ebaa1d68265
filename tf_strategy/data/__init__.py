"""Each worker's part of a dataset, and the common end of the data."""
