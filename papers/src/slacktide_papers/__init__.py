"""Published experiments, run again: our figures beside the printed ones.

One folder for each paper. Not a benchmark: what is measured here is simulated, and repeats exactly.
"""

__version__ = "0.1.0"
