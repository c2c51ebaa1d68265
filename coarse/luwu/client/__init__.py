"""Models in the network as a worker sees them: it pulls units and pushes their gradients (LuWu)."""
