"""Published experiments, run again: our figures beside the printed ones.

One folder for each paper. Not a benchmark: runs are simulated, and their results repeat exactly.
"""

__version__ = "0.1.0"
