"""The tools around the server: simulation, load, emulated links, reports, example models, demos."""
