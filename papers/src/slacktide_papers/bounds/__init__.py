"""Upper bounds of what any plan can reach: an exact program, and one with load as a fluid."""
