"""How a batch reaches a worker process and comes back.

The folder is compiled whole.
"""
