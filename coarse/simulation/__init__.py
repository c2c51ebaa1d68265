"""Training jobs on a virtual clock: the machines of live training over links that take their time.

It stands here and not in coarse.hardware, because a driver needs both client and
proxy, which the tiers may not import of one another.
"""
