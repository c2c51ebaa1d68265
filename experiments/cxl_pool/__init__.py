"""What others measured of memory that hosts share over CXL, simulated on our model of a pool."""
