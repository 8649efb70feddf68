"""Refuses to use the client in a process that was forked from one with a connection.

The threads of gRPC and of the client do not exist there, and gRPC cannot be started again: it
crashes, or waits for ever. So whatever needs them raises at once, and closing does nothing.
"""

from __future__ import annotations

import os

from slacktide.client.messages import ClientError

_HANDLERS = "GRPC_ENABLE_FORK_SUPPORT"


class _Forks:
    watched = False
    """Whether a connection was made in this process, or in one that it was forked from."""
    happened = False
    """Whether this process was forked after a connection was made."""


def is_forked() -> bool:
    """Whether no connection works in this process."""
    return _Forks.happened


def require_unforked() -> None:
    """Raises ClientError in a process where no connection works."""
    if _Forks.happened:
        raise ClientError(
            "this process was forked from one that had a connection, which gRPC does not survive: "
            "connect only after the fork, in each process, or start processes with the method "
            "'spawn' or 'forkserver' of multiprocessing"
        )


def watch_forks() -> None:
    """A connection is about to be made. Raises ClientError in a process where none works.

    gRPC's own fork handlers stay off where it is imported here and the environment does not say
    otherwise: beside the thread of grpc.aio they only crash children, one in five.
    """
    require_unforked()
    if not _Forks.watched:
        _Forks.watched = True
        os.register_at_fork(after_in_child=_forked)
        stated = _HANDLERS in os.environ
        os.environ.setdefault(_HANDLERS, "0")
        try:
            import grpc  # noqa: F401  # reads it
        finally:
            if not stated:
                del os.environ[_HANDLERS]


def _forked() -> None:
    _Forks.happened = True
