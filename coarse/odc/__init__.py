"""On-demand communication (ODC): workers gather units when they need them, and add gradients in place."""
