"""Worker's end of on-demand communication (ODC)."""
