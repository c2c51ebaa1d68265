"""Cluster in a box: nodes as network namespaces of this machine, joined by a bridge.

`shape` and `rate` are the requested properties, `plan` has the commands that make it, `box` makes it and takes it down,
`run` runs a job in it, and `interfaces` and `traffic` count the bytes that crossed.
"""
