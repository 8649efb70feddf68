"""`require_kernel`: checks for the system calls that worker processes need."""

from __future__ import annotations

import errno
import os
import signal
import sys


class UnsupportedKernelError(OSError):
    """The kernel, or a sandbox around this process, lacks a system call."""


def require_kernel() -> None:
    """Raise UnsupportedKernelError, naming every missing call, if any call is missing."""
    if sys.platform != "linux":
        raise UnsupportedKernelError(
            f"models run in worker processes, which need Linux; this is {sys.platform}"
        )
    missing, reason = [], ""
    for call in ("pidfd_open (Linux 5.3)", "memfd_create (Linux 3.17)"):
        try:
            if call.startswith("pidfd"):
                descriptor = os.pidfd_open(os.getpid())
                signal.pidfd_send_signal(descriptor, 0)
            else:
                flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
                descriptor = os.memfd_create("slacktide-check", flags)
            os.close(descriptor)
        except (OSError, AttributeError) as error:  # Python may be built without them
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            missing.append(call)
            reason = reason or getattr(error, "strerror", None) or str(error)
    if missing:
        cure = "use a newer kernel, or a sandbox or seccomp profile that allows it"
        raise UnsupportedKernelError(f"this system lacks {' and '.join(missing)}: {reason}; {cure}")
