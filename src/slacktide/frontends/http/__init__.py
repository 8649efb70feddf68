"""The HTTP/1.1 front end: the Open Inference Protocol, on asyncio and httptools.

It converts, calls the data plane or the control plane and converts back; it decides nothing about
inference.
"""

from slacktide.frontends.http.protocol import HttpServer as HttpServer
from slacktide.frontends.http.router import HttpRoute as HttpRoute
from slacktide.frontends.http.routes import inference_routes as inference_routes
from slacktide.frontends.http.routes import metrics_routes as metrics_routes
