"""`require_kernel`: whether the system has the calls that worker processes need."""

from __future__ import annotations

import errno
import os
import signal


class UnsupportedKernelError(OSError):
    """The kernel, or a sandbox around this process, lacks a system call."""


def _open_process() -> int:
    descriptor = os.pidfd_open(os.getpid())
    signal.pidfd_send_signal(descriptor, 0)
    return descriptor


def _open_memory() -> int:
    return os.memfd_create("slacktide-check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


_CALLS = (
    ("pidfd_open and pidfd_send_signal (Linux 5.3)", _open_process),
    ("memfd_create (Linux 3.17)", _open_memory),
)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def require_kernel() -> None:
    """Raise UnsupportedKernelError, which names every call that is missing."""
    missing, reasons = [], []
    for names, open_descriptor in _CALLS:
        try:
            os.close(open_descriptor())
        except (OSError, AttributeError) as error:  # Python may have been built without
            if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
                raise
            missing.append(names)
            reasons.append(getattr(error, "strerror", None) or str(error))
    if missing:
        cure = "use a later kernel, or a sandbox or seccomp profile that allows these calls"
        raise UnsupportedKernelError(
            f"this system lacks {' and '.join(missing)}: {reasons[0]}; {cure}"
        )
