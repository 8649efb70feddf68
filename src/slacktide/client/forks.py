"""Detects a process that was forked from one with a connection: the client cannot be used there.

The threads of gRPC and of the client do not exist after a fork, and gRPC cannot be started again:
it crashes or hangs. So everything that needs them raises immediately, and closing does nothing.
"""

from __future__ import annotations

import os

from slacktide.client.messages import ClientError

_HANDLERS = "GRPC_ENABLE_FORK_SUPPORT"


class _Forks:
    watched = False
    """Whether a connection was made in this process or in one it was forked from."""
    happened = False
    """Set in a process forked after a connection was made."""


def is_forked() -> bool:
    """Whether connections cannot work in this process."""
    return _Forks.happened


def require_unforked() -> None:
    """Raise ClientError in a process where connections cannot work."""
    if _Forks.happened:
        raise ClientError(
            "this process was forked from one that had a connection, which gRPC does not survive; "
            "connect in each process after the fork, or start processes with the method 'spawn' "
            "or 'forkserver' of multiprocessing"
        )


def watch_forks() -> None:
    """Prepare for a connection. Raises ClientError in a process where connections cannot work.

    Turns gRPC's own fork handlers off if grpc is first imported here and the environment does not
    set them: with the thread of grpc.aio they crash one child in five.
    """
    require_unforked()
    if not _Forks.watched:
        _Forks.watched = True
        os.register_at_fork(after_in_child=_forked)
        is_set = _HANDLERS in os.environ
        os.environ.setdefault(_HANDLERS, "0")
        try:
            import grpc  # noqa: F401  # reads the variable
        finally:
            if not is_set:
                del os.environ[_HANDLERS]


def _forked() -> None:
    _Forks.happened = True
