"""What HTTP and gRPC share of a connection: its turns, its gate, and refusals.

The folder is compiled whole.
"""
