"""Stand-ins for hardware and networks: the tiers' machines without MPI."""
