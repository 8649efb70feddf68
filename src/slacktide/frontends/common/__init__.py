"""Code shared by HTTP and gRPC connections: turns, the gate, refusals. Compiled as a whole."""
