"""Metrics, traces and logs of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names

if TYPE_CHECKING:
    from slacktide.observability.observers import AnsweredRequest as AnsweredRequest
    from slacktide.observability.observers import RequestObserver as RequestObserver
else:
    __getattr__ = lazy_names(__name__, {"observers": "AnsweredRequest RequestObserver"})
