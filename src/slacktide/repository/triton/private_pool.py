"""A protobuf world of our own, apart from the process-wide default pool.

`tritonclient` registers the same message names (`inference.ModelConfig`, …) in the default pool,
and two definitions of one name cannot live there. Everything of ours therefore lives in private
pools, made from descriptor sets that are compiled at development time and committed.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

MODEL_CONFIG_PROTO = "slacktide/repository/triton/model_config.proto"
"""The name under which other .proto files import ours."""


class PrivatePool:
    """Message classes of the given descriptor sets, known to nobody else.

    Each set is a serialized `FileDescriptorSet`; a file may import from its own set and from
    those before it. Files named twice are taken once.
    """

    def __init__(self, *descriptor_sets: bytes) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        seen: set[str] = set()
        for serialized in descriptor_sets:
            for file in descriptor_pb2.FileDescriptorSet.FromString(serialized).file:
                if file.name not in seen:
                    seen.add(file.name)
                    self._pool.Add(file)

    @property
    def descriptors(self) -> descriptor_pool.DescriptorPool:
        """What `text_format` and `json_format` want as `descriptor_pool`."""
        return self._pool

    def message(self, full_name: str) -> type[Message]:
        """The class of a message, the same one at every call. Raises KeyError if unknown."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(full_name))


def model_config_descriptors() -> bytes:
    """The committed descriptor set of model_config.proto, to build other pools upon."""
    return files(__package__).joinpath("model_config.binpb").read_bytes()


@cache
def model_config_pool() -> PrivatePool:
    """The pool that this room reads configurations with."""
    return PrivatePool(model_config_descriptors())
