"""Sharded training on modelled links: units that are gathered, computed, freed and reduced, mode by mode."""
