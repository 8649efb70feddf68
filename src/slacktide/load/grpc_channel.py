"""A gRPC channel to a target. Loads grpcio: import this only where it is needed."""

from __future__ import annotations

import grpc
import grpc.aio

from slacktide.load.errors import TargetError
from slacktide.load.spec import Target

SERVICE = "inference.GRPCInferenceService"

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Channels to one address would otherwise share one connection.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(target: Target) -> grpc.aio.Channel:
    """An aio channel, not yet connected. Raises TargetError if `ca_file` cannot be read."""
    address, options = target.authority, list(_OPTIONS)
    if target.via is not None:
        address = "{}:{}".format(*target.via)
        options.append(("grpc.default_authority", target.authority))
    if not target.tls:
        return grpc.aio.insecure_channel(address, options=options)
    try:
        roots = target.ca_file.read_bytes() if target.ca_file else None
    except OSError as error:
        raise TargetError(f"cannot read {target.ca_file}: {error.strerror}") from None
    credentials = grpc.ssl_channel_credentials(root_certificates=roots)
    if target.via is not None:
        options.append(("grpc.ssl_target_name_override", target.host))
    return grpc.aio.secure_channel(address, credentials, options=options)
