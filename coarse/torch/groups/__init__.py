"""Groups of workers: process sets, their communication, and objects and parameters among them."""
