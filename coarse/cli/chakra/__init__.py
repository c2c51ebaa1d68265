"""Chakra execution traces (MLCommons): their bytes, their nodes, and the graph of the nodes.

A trace is a file for each worker, NAME.RANK.et: one GlobalMetadata, then a Node for each thing that was done.
"""
