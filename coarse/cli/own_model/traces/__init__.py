"""Traced training step as a model: by Kineto (torch.profiler), by Chakra, or by coarse itself.

`file` reads what --model names. Each format has a file that finds the step's gradients and the times at which they were
ready; `step` makes layers of these.
"""
