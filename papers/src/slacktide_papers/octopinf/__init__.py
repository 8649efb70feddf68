"""OctopInf: pipelines of models on edge devices and a server, placed and timed."""
