"""Mode odc of `fully_shard`: on-demand communication below FSDP2."""
