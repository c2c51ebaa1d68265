"""What coarse asks of GPUs, and CUDA by CuPy behind it."""
