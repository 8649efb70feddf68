"""Upper bounds of what any plan can reach: exact, and as a fluid."""
