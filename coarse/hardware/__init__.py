"""Models of absent machines (links, fabrics, accelerators, compute), and measurements of this one."""
