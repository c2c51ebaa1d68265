"""Live training over links that take the time of their model: the second of the three drivers.

Clients, proxies and rings are those of live training; the code here is put around them from outside. Bytes move through
mapped memory and over MPI at once, but the records that announce them go through one fabric process, which hands them
on when the model of the links says that the bytes have arrived.
"""
