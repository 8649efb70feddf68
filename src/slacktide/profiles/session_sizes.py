"""Which sessions a replica has, and which of them it uses (decision 0021).

A session is a model opened with a number of threads. On fewer cores than threads they get in each
other's way; so a replica that will be resized keeps several.
"""

from __future__ import annotations

from collections.abc import Sequence


def session_sizes(least: int, most: int) -> tuple[int, ...]:
    """Thread counts of the sessions of a replica that runs on `least` to `most` cores, ascending.

    Both ends, and the powers of two between them. Raises ValueError unless 1 ≤ least ≤ most.
    """
    if not 1 <= least <= most:
        raise ValueError(f"expected 1 ≤ least ≤ most, got {least} and {most}")
    powers = (1 << power for power in range(most.bit_length()))
    return (*sorted({least, most, *(n for n in powers if least < n < most)}),)


def covering(threads: Sequence[int], cores: int) -> int:
    """Of sessions with these thread counts (at least one), the one to use on `cores` cores: the
    smallest with a thread for each, or else the largest."""
    return min((n for n in threads if n >= cores), default=max(threads))
