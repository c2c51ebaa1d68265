"""Sweeps over settings of predictions and fields of machines: their points, rows, crossovers and picture."""
