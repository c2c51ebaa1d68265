"""What sharded training decides: units, caches, and the memory that they take."""
