"""What every call of a model passes: the check of its inputs, and counters.

The folder is compiled whole.
"""
