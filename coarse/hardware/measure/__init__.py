"""Measurements of the present machine or one of its devices: `coarse profile`, `coarse calibrate`."""
