"""Models that are classifiers by their makers' word, whatever they end in."""

from __future__ import annotations

from functools import partial

from slacktide.exits import positions

find_positions = partial(positions.find_positions, labels=range(2, 5000))
"""Any number of classes has names."""
