"""The wall-clock driver and its front ends: sockets in, engine, worker processes, answers out.

The driver decides nothing about order or batches: the engine and its schedulers do.
"""
