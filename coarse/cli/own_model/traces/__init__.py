"""A step of training that was traced, as a model: by Kineto (torch.profiler), by Chakra, or by coarse itself.

`file` reads what --model names. Each format has a file that finds the step's gradients and when they were there;
`step` makes layers of these.
"""
