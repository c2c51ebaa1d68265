"""Models in the network on a memory device: the optimizer node that serves them (LuWu)."""
