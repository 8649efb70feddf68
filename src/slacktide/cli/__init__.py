"""The command line: a thin layer of flags, tables and exit codes over the rooms below.

Nothing here decides anything a Python caller could not; each verb is a file.
"""
