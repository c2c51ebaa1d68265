"""A worker's end of on-demand communication (ODC)."""
