"""Jellyfish: families of variants for clients on changing networks."""
