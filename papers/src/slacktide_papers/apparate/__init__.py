"""Apparate (2024): early exits that are managed while a model serves."""
