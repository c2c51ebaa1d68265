"""This machine, or a memory device of it, measured as a machine file: `coarse profile`, `coarse calibrate`."""
