"""Simulation of on-demand communication on stated clusters, by the machines that run live."""
