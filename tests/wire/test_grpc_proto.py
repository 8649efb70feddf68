"""The compiled service definition: up to date, typed right, and at peace with stock clients."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tests.wire import compile_protos as compiling

from slacktide.wire.proto import messages

STUBS = Path(messages.__file__).with_suffix(".pyi")


def test_the_committed_descriptors_are_those_of_the_proto_files():
    committed = FileDescriptorSet.FromString(compiling.TARGET.read_bytes())
    assert committed == FileDescriptorSet.FromString(compiling.compiled())


@pytest.mark.parametrize(
    "statements",
    [
        "import tritonclient.grpc, grpc_health.v1.health_pb2; import slacktide.wire.proto.messages",
        "import slacktide.wire.proto.messages; import tritonclient.grpc, grpc_health.v1.health_pb2",
    ],
)
def test_stock_clients_can_be_imported_before_and_after(statements):
    code = f"{statements}; from slacktide.wire.proto.messages import ModelInferRequest as Ours"
    code += "; from tritonclient.grpc.service_pb2 import ModelInferRequest as Theirs"
    code += "; message = Theirs(model_name='m', id='1').SerializeToString()"
    code += "; assert Ours is not Theirs; assert Ours.FromString(message).model_name == 'm'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def shape_of(message: Descriptor, names: frozenset[str] = frozenset()) -> dict[str, object]:
    """Number, type and meaning of every field, nested messages unfolded."""

    def kind(field: FieldDescriptor) -> object:
        if field.message_type is not None and field.message_type.full_name not in names:
            inner = names | {field.message_type.full_name}
            return shape_of(field.message_type, inner)
        return field.type

    return {field.name: (field.number, field.is_repeated, kind(field)) for field in message.fields}


@pytest.mark.parametrize("name", sorted(messages.service_methods(messages.INFERENCE_SERVICE)))
def test_every_method_has_the_fields_and_numbers_of_the_stock_client(name):
    from tritonclient.grpc import service_pb2

    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name[name]
    ours = messages.service_methods(messages.INFERENCE_SERVICE)[name]
    assert ours[0].DESCRIPTOR.full_name == theirs.input_type.full_name
    assert ours[1].DESCRIPTOR.full_name == theirs.output_type.full_name
    assert shape_of(ours[0].DESCRIPTOR) == shape_of(theirs.input_type)
    if name != "ModelConfig":  # ModelConfig is the repository's, and tested there
        assert shape_of(ours[1].DESCRIPTOR) == shape_of(theirs.output_type)


def test_the_methods_are_those_of_the_stock_client():
    from tritonclient.grpc import service_pb2

    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    assert set(messages.service_methods(messages.INFERENCE_SERVICE)) == set(theirs)


@pytest.mark.parametrize("name", ["HealthCheckRequest", "HealthCheckResponse"])
def test_health_messages_are_those_of_the_stock_package(name):
    from grpc_health.v1 import health_pb2

    theirs = getattr(health_pb2, name).DESCRIPTOR
    assert shape_of(getattr(messages, name).DESCRIPTOR) == shape_of(theirs)
    values = {
        value.name: value.number
        for value in theirs.file.message_types_by_name["HealthCheckResponse"]
        .enum_types_by_name["ServingStatus"]
        .values
    }
    assert values["SERVING"] == messages.SERVING
    assert values["NOT_SERVING"] == messages.NOT_SERVING
    assert values["SERVICE_UNKNOWN"] == messages.SERVICE_UNKNOWN


def stub_classes(body: list[ast.stmt], prefix: str = "") -> dict[str, ast.ClassDef]:
    classes = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            name = f"{prefix}{node.name}"
            classes[name] = node
            classes.update(stub_classes(node.body, f"{name}."))
    return classes


STUB_CLASSES = stub_classes(ast.parse(STUBS.read_text()).body)


@pytest.mark.parametrize("name", sorted(STUB_CLASSES))
def test_the_types_agree_with_the_descriptors(name):
    node = STUB_CLASSES[name]
    part_of: object = messages
    for part in name.split("."):
        part_of = getattr(part_of, part)
    fields = {field.name: field for field in part_of.DESCRIPTOR.fields}
    stated: dict[str, str] = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign):
            stated[item.target.id] = ast.unparse(item.annotation)
        elif isinstance(item, ast.FunctionDef) and item.name != "__init__":
            stated[item.name] = ast.unparse(item.returns)
        elif isinstance(item, ast.FunctionDef):
            assert {argument.arg for argument in item.args.kwonlyargs} <= set(fields)
    for field, type_name in stated.items():
        assert type_name == type_of(fields[field]), field


def type_of(field: FieldDescriptor) -> str:
    """The Python type of a field, as the stubs write it."""
    scalars = {
        FieldDescriptor.CPPTYPE_BOOL: "bool",
        FieldDescriptor.CPPTYPE_INT32: "int",
        FieldDescriptor.CPPTYPE_INT64: "int",
        FieldDescriptor.CPPTYPE_UINT32: "int",
        FieldDescriptor.CPPTYPE_UINT64: "int",
        FieldDescriptor.CPPTYPE_ENUM: "int",
        FieldDescriptor.CPPTYPE_FLOAT: "float",
        FieldDescriptor.CPPTYPE_DOUBLE: "float",
    }
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        value = type_of(message.fields_by_name["value"])
        scalar = message.fields_by_name["value"].message_type is None
        return f"{'Scalar' if scalar else 'Message'}Map[str, {value}]"
    if message is not None:
        name = message.name if message.name in STUB_CLASSES or field.is_repeated else "Message"
        return f"RepeatedCompositeFieldContainer[{name}]" if field.is_repeated else name
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        scalar = "bytes" if field.type == FieldDescriptor.TYPE_BYTES else "str"
    else:
        scalar = scalars[field.cpp_type]
    return f"RepeatedScalarFieldContainer[{scalar}]" if field.is_repeated else scalar
