"""Training jobs on a virtual clock: the machines of live training over links that take their time.

It stands beside coarse.loopback and not in coarse.emulation, because a driver needs both client and
proxy, which the tiers may not import of one another.
"""
