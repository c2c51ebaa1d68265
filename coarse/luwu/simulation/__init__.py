"""Simulation of LuWu's training on stated clusters: the optimizer node's own machine in virtual time."""
