"""Where a client's bytes come in and go out: the Open Inference Protocol over HTTP and gRPC."""
