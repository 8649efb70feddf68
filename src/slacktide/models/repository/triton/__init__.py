"""Triton's model configuration: its messages, its fields one by one, its translation into ours.

Not a reader of folders: text in, messages and settings out.
"""
