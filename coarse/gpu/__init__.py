"""Interface to GPUs, and CUDA by CuPy behind it."""
