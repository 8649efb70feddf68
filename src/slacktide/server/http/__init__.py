"""HTTP/1.1: the Open Inference Protocol on our own asyncio protocol over httptools.

Converts, calls the data plane or the control plane, converts back; decides nothing about
inference.
"""

from slacktide.server.groups import Group
from slacktide.server.http.hub import Access, AccessLog, Authorize, Denial
from slacktide.server.http.messages import Request, Response
from slacktide.server.http.router import Route
from slacktide.server.http.routes import inference_routes, metrics_routes
from slacktide.server.http.server import HttpServer
from slacktide.server.http.settings import HttpSettings

__all__ = [
    "Access",
    "AccessLog",
    "Authorize",
    "Denial",
    "Group",
    "HttpServer",
    "HttpSettings",
    "Request",
    "Response",
    "Route",
    "inference_routes",
    "metrics_routes",
]
