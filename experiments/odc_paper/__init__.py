"""ODC's evaluation, simulated; see docs/odc.md."""
