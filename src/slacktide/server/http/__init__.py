"""HTTP/1.1: the Open Inference Protocol on our own asyncio protocol over httptools.

Converts, calls the data plane or the control plane, converts back; decides nothing about
inference.
"""

from slacktide.server.http.hub import Access as Access
from slacktide.server.http.hub import AccessLog as AccessLog
from slacktide.server.http.hub import Authorize as Authorize
from slacktide.server.http.hub import Denial as Denial
from slacktide.server.http.messages import Request as Request
from slacktide.server.http.messages import Response as Response
from slacktide.server.http.router import Route as Route
from slacktide.server.http.routes import inference_routes as inference_routes
from slacktide.server.http.routes import metrics_routes as metrics_routes
from slacktide.server.http.server import HttpServer as HttpServer
from slacktide.server.http.settings import HttpSettings as HttpSettings
from slacktide.server.ports import Group as Group
