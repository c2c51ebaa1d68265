"""Models in the network: parameters and optimizer states live on memory devices, and workers pull what they compute."""
