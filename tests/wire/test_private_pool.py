"""The committed descriptors are those of the .proto, and share nothing with the default pool."""

from __future__ import annotations

import gc
import weakref

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor

from slacktide.wire.proto.messages import message_class


def test_our_classes_do_not_enter_the_default_pool() -> None:
    ours = message_class("inference.ModelConfig")
    assert ours.DESCRIPTOR.file.pool is not descriptor_pool.Default()
    assert ours is message_class("inference.ModelConfig")


def test_a_class_that_nothing_else_holds_is_not_collected() -> None:
    names = ("inference.ModelConfig", "inference.ModelOptimizationPolicy.Cuda.GraphSpec")
    ours = [weakref.ref(message_class(name)) for name in names]
    gc.collect()
    assert [reference() for reference in ours] == [message_class(name) for name in names]


def test_names_numbers_and_types_are_those_of_the_stock_client() -> None:
    from tritonclient.grpc import model_config_pb2

    ours = _facts(message_class("inference.ModelConfig").DESCRIPTOR, {})
    theirs = _facts(model_config_pb2.ModelConfig.DESCRIPTOR, {})
    assert len(ours) > 50
    assert ours == theirs


def _facts(message: Descriptor, facts: dict[str, set[object]]) -> dict[str, set[object]]:
    """Every message and enum reachable from `message`, with its fields or values."""
    if message.full_name not in facts:
        facts[message.full_name] = {
            (f.name, f.number, f.type, f.is_repeated, f.json_name) for f in message.fields
        }
        for field in message.fields:
            if field.message_type is not None:
                _facts(field.message_type, facts)
            elif field.enum_type is not None:
                values = field.enum_type.values
                facts[field.enum_type.full_name] = {(v.name, v.number) for v in values}
    return facts
