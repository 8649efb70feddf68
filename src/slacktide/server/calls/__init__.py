"""The way of every call: from its descriptor to the engine's driver and back.

The folder is compiled whole.
"""
