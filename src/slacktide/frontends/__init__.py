"""The network front ends: the Open Inference Protocol over HTTP and gRPC."""
