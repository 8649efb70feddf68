"""Several servers with plain models in virtual time, and requests forwarded between them."""
