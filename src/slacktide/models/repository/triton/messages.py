"""Reads a ModelConfig from text (config.pbtxt) or JSON (a load call) into plain data.

Plain data has proto field names, enums by name, 64-bit numbers as numbers, and only stated fields.
All other code uses plain data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from slacktide.domain.suggestions import shown, suggestion
from slacktide.models.repository.errors import ModelConfigError
from slacktide.wire.proto.messages import message_class, private_pool

CONFIG_FILE = "config.pbtxt"
MAX_CONFIG_BYTES = 1024 * 1024

PlainConfig = Mapping[str, Any]
"""A ModelConfig as JSON-like data; unstated fields are absent."""

_GPU = re.compile(r"\bKIND_GPU\b|\bgpus\b|\bkind\s*:\s*1\b")
_NO_FIELD = re.compile(r'[Mm]essage type "([\w.]+)" has no field named "([^"]*)"')
_NO_VALUE = re.compile(r'[Ee]num type "([\w.]+)" has no value (?:named|with name) ([^.\s]+)')
_NO_JSON_VALUE = re.compile(r"[Ii]nvalid enum value (\S+) for enum type ([\w.]+)")


def parse_text(data: bytes, *, where: str) -> PlainConfig:
    """Parse a config.pbtxt. Raises ModelConfigError naming the line and the nearest valid word."""
    message, pool = message_class("inference.ModelConfig")(), private_pool()
    try:
        text_format.Parse(data.decode("utf-8-sig"), message, descriptor_pool=pool)
    except text_format.ParseError as error:
        line = f"line {error.GetLine()}: " if error.GetLine() is not None else ""
        reason = re.sub(r"^(\d+:\d+ : )+", "", str(error))
        raise ModelConfigError(where, line + _reworded(reason)) from None
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(where, _unreadable(error)) from None
    return _plain(message, where)


def line_of_gpu(data: bytes) -> int:
    """Return the line of a config.pbtxt, from 1, that states a GPU; 1 if no single line does."""
    lines = (line.partition("#")[0] for line in data.decode("utf-8-sig").splitlines())
    numbered = enumerate(lines, start=1)
    return next((number for number, line in numbered if _GPU.search(line)), 1)


def parse_json(text: str, *, where: str) -> PlainConfig:
    """Parse the `config` of a load call. Raises ModelConfigError naming the nearest valid word."""
    if len(text) > MAX_CONFIG_BYTES:
        raise ModelConfigError(where, f"expected at most {MAX_CONFIG_BYTES} characters")
    if not text.lstrip().startswith("{"):
        raise ModelConfigError(where, f"expected a JSON object, got {shown(text)}")
    message, pool = message_class("inference.ModelConfig")(), private_pool()
    try:
        json_format.Parse(text, message, descriptor_pool=pool)
    except json_format.ParseError as error:
        raise ModelConfigError(where, _reworded(str(error))) from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelConfigError(where, _unreadable(error)) from None
    return _plain(message, where)


def to_text(config: PlainConfig) -> bytes:
    """Return a config.pbtxt that parses to `config`."""
    message, pool = message_class("inference.ModelConfig")(), private_pool()
    json_format.ParseDict(dict(config), message, descriptor_pool=pool)
    return text_format.MessageToString(message, descriptor_pool=pool).encode()


def fields_of(message_name: str) -> tuple[str, ...]:
    """Return the fields of a message, in the order of the .proto."""
    return tuple(message_class(message_name).DESCRIPTOR.fields_by_name)


def _reworded(reason: str) -> str:
    if (match := _NO_FIELD.search(reason)) is not None:
        message, field = match[1], match[2]
        hint = suggestion(field, fields_of(message))
        return f"unknown field {shown(field)} in {_short(message)}; {hint}"
    if (match := _NO_VALUE.search(reason)) is not None:
        return _unknown_value(match[1], match[2].strip("\"'"))
    if (match := _NO_JSON_VALUE.search(reason)) is not None:
        return _unknown_value(match[2], match[1])
    return reason.partition("\n")[0][:300].rstrip(".")


def _unknown_value(enum_name: str, value: str) -> str:
    enum = private_pool().FindEnumTypeByName(enum_name)
    hint = suggestion(value, enum.values_by_name)
    return f"unknown value {shown(value)} of {_short(enum_name)}; {hint}"


def _short(full_name: str) -> str:
    return full_name.removeprefix("inference.")


def _unreadable(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "expected UTF-8"
    return "nested too deeply" if isinstance(error, RecursionError) else "expected a ModelConfig"


def _plain(message: Message, where: str) -> dict[str, Any]:
    """Return the stated fields of `message` by name, in the order of field numbers."""
    plain: dict[str, Any] = {}
    for field, value in message.ListFields():
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            of = nested.fields_by_name["value"]
            plain[field.name] = {str(k): _plain_value(of, value[k], where) for k in sorted(value)}
        elif isinstance(value, Message | str | bytes | int | float):
            plain[field.name] = _plain_value(field, value, where)
        else:  # repeated; descriptors name it differently since protobuf 6
            plain[field.name] = [_plain_value(field, item, where) for item in value]
    return plain


def _plain_value(field: FieldDescriptor, value: Any, where: str) -> Any:
    if field.message_type is not None:
        return _plain(value, where)
    if field.enum_type is not None:
        enum_value = field.enum_type.values_by_number.get(value)
        if enum_value is None:  # proto3 accepts numbers without a name
            names = ", ".join(field.enum_type.values_by_name)
            raise ModelConfigError(where, f"{field.name}: expected one of {names}, got {value}")
        return enum_value.name
    return value
