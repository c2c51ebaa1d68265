"""A cluster in a box: nodes as network namespaces of this machine, joined by a bridge.

`shape` and `rate` are what is asked for, `plan` says how it is made, `box` makes it and takes it down, `run` runs a
job in it, and `interfaces` and `traffic` tell what crossed.
"""
