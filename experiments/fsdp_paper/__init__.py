"""What the PyTorch FSDP paper states of collectives, hybrid sharding and overlap, simulated."""
