"""Servers that answer for each other: their links, and the calls that they share."""
