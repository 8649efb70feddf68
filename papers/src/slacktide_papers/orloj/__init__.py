"""Orloj's evaluation (2022): Tables 2 to 5 and Figures 12 to 14, simulated with this engine."""
