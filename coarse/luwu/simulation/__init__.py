"""LuWu's training on clusters that are stated: the optimizer node's own machine in virtual time."""
