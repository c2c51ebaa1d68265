"""Groups of workers: process sets, what they communicate by, and objects and parameters among them."""
