"""Sharded training on torch's FSDP2."""
