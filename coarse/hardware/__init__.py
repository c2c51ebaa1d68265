"""Machines that are not here, as models: links, fabrics, accelerators, compute; and this one, measured."""
