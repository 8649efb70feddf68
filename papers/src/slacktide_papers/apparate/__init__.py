"""Apparate (2024): early exits managed while they serve."""
