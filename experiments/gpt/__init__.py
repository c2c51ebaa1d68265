"""A small byte-level GPT and its data-parallel training, the subject of the demo and of benchmarks."""
