"""Collectives by their names in Horovod and BytePS, for scripts that were written for those."""
