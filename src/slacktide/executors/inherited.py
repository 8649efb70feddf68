"""Puts right what a process inherits: closed standard streams, blocked or ignored signals, a
umask that takes its owner's rights away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys

OURS = (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def open_standard_streams() -> None:
    """Open those of the descriptors 0, 1 and 2 that are closed. Else a socket gets such a number,
    and is written to, or closed, by whoever means the stream."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))  # noqa: SIM115


def take_over() -> None:
    """Put all of it right, for a program of ours."""
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                os.close(fd)  # a shell that was started without it has its script there
    open_standard_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, ends of children cannot be waited for
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OURS)
    os.umask(os.umask(0o077) & 0o077)
