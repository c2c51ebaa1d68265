"""Measurements of this machine, or of its memory devices, as a machine file: `coarse profile`, `coarse calibrate`."""
