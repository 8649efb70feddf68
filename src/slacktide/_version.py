"""The one place that states the version."""

from pathlib import Path

__version__ = "0.1.0"


COMPILED: tuple[str, ...] = ()
"""The modules that are compiled, as files beside their sources: empty but in a compiled wheel,
whose build writes it (hatch_build.py)."""

BUILD = "compiled" if COMPILED else "interpreted"


def check_build() -> None:
    """Raises ImportError if a compiled module is missing: its group cannot do without it."""
    folder = Path(__file__).parent
    for name in COMPILED:
        if not (folder.parent / name).is_file():
            raise ImportError(
                f"{name} is missing from this compiled build; install slacktide again"
            )
