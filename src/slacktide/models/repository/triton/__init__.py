"""Triton's model configuration: reads it, checks its fields, and translates it into our
settings."""
