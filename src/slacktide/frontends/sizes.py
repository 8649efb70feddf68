"""Bytes in the units that limits are written in."""

KIB = 1024
MIB = 1024 * KIB
