"""What all ranks agree on, decided without I/O: configuration, records, plans, rings, the partition table."""
