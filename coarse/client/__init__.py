"""The parameter client: what runs beside the model on a worker (COARSE III-C)."""
