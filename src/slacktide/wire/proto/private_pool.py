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


class PrivatePool:
    """Message classes of the given descriptor sets, known to no other.

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


def descriptors() -> bytes:
    """The committed descriptor set of every .proto file of this folder."""
    return files(__package__).joinpath("descriptors.binpb").read_bytes()


@cache
def private_pool() -> PrivatePool:
    """The pool of everything that we read and write: the services and the model configuration."""
    return PrivatePool(descriptors())
