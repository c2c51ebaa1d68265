"""On-demand communication (ODC) on a memory device."""
