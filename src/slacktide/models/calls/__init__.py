"""Checks and counters that every call of a model passes. Compiled as a whole."""
