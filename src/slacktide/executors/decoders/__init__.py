"""Decoders: turn the raw outputs of a model into answers, in the worker, a batch at a time.

A decoder replaces the model's outputs. It belongs here if it is pure NumPy and a real model needs
it; anything else is a function of the server's owner (`function.py`).
"""
