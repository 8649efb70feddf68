"""The driver in virtual time, and the hardware and devices under it.

The folder is compiled whole.
"""
