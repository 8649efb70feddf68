"""Early exits of a model: where it can be left, ramps that answer there, and their files."""
