"""The `slacktide` program. Nothing heavy is imported before signals are handled."""

import os
import signal
import sys

from slacktide.executors.inherited import take_over


def main() -> None:
    """Entry point of the `slacktide` program."""
    if sys.argv[1:2] == ["serve"]:  # before it serves, there is nothing to clean up
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: os._exit(0))
    take_over()
    try:
        from slacktide.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
