"""On-demand communication: workers gather what they need when they need it, and add gradients where they lie (ODC)."""
