"""Sponge's evaluation (2024): Figures 1, 3 and 4 and Table 1, and harder settings, simulated."""
