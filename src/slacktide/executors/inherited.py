"""Repairs what a process may inherit: closed standard streams, blocked or ignored signals, a umask
that removes its owner's rights."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys

OURS = (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def open_standard_streams() -> None:
    """Open descriptors 0, 1 and 2 if they are closed. Otherwise a socket could get one of these
    numbers, and code that uses the stream would write to the socket or close it."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115


def take_over() -> None:
    """Repair everything, at the start of one of our programs."""
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                os.close(fd)  # a shell that was started without this stream opened its script here
    open_standard_streams()
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # if it were ignored, children could not be waited for
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OURS)
    os.umask(os.umask(0o077) & 0o077)
