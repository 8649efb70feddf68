"""HTTP/2 (RFC 9113) without a socket, for the gRPC front end."""

from slacktide.frontends.http2.connection import Http2Connection as Http2Connection
from slacktide.frontends.http2.frames import ErrorCode as ErrorCode
from slacktide.frontends.http2.heads import Head as Head
from slacktide.frontends.http2.sending import Http2Stream as Http2Stream
