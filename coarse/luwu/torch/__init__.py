"""Models in the network: memory devices keep parameters and states, and workers pull and push units."""
