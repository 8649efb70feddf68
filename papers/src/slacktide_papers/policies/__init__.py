"""Policies that serve only as comparisons for ours."""
