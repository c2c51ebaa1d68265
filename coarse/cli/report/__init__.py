"""Presentation of runs: predictions and measured runs as tables, pictures, traces and a page.

This package is a face: it may import everything else, and is the only one that imports matplotlib.
"""
