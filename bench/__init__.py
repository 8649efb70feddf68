"""Benchmarks: `python -m bench [NAME …]`; README.md says what each measures and why.

Not part of the package: nothing in `src/` imports this, and tests assert nothing about time.
"""
