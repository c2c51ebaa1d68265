"""This machine, measured by two processes, as a machine file that predictions run on: `coarse profile`."""
