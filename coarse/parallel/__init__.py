"""What training in parallel decides, whichever framework computes: by data, or sharded."""
