"""Reports of runs: predictions of the simulator and measured runs as tables, pictures, traces and a page.

A face: it may import everything else, and is the only package that imports matplotlib.
"""
