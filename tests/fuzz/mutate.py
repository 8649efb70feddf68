"""Inputs that are almost right: examples, changed by chance of a stated seed.

Every change comes of a `random.Random` that the caller passes in, so an input is told again by its
target, seed and number. Three kinds: of bytes, of a JSON document's parts, of a protobuf message's
fields. The latter two keep the form, and so get behind the parser.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

Change = Callable[[bytes, random.Random], bytes]

LONGEST = 1 << 16
"""Bytes of an input; beyond that it is cut."""

NUMBERS = (
    b"0", b"-0", b"1", b"-1", b"2", b"127", b"128", b"255", b"256", b"65535", b"65536",
    b"2147483647", b"2147483648", b"4294967296", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775809", b"18446744073709551616", b"1e-320", b"1e308", b"1e309", b"-1e999",
    b"0.5", b"1" + b"0" * 400, b"9" * 5000, b"0x7f", b"1_0", b"nan", b"inf", b"NaN", b"Infinity",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400,
    0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"), "", "0", "x",
    "x" * 300, "\0", "\ud800", "é\u2028", [], [[]], [0], [-1], [None], {}, {"": None}, {"x": 1},
)  # fmt: skip
BYTES = (0, 1, 9, 10, 13, 32, 34, 44, 45, 58, 92, 127, 128, 192, 224, 240, 255)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def of_bytes(examples: Sequence[bytes], words: Sequence[bytes] = ()) -> Change:
    """Flips, cuts, repeats, splices with another of `examples`, `words`, odd numbers."""

    def change(data: bytes, chance: random.Random) -> bytes:
        out = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 3, 6))):
            at = chance.randrange(len(out) + 1)
            end = min(len(out), at + chance.choice((1, 1, 2, 4, 16, 200)))
            kind = chance.randrange(9)
            if kind == 0 and at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            elif kind == 1 and at < len(out):
                out[at] = chance.choice(BYTES)
            elif kind == 2:
                del out[at:end]
            elif kind == 3:
                out[at:at] = out[at:end] * chance.choice((1, 2, 30))
            elif kind == 4:
                out[at:at] = chance.choice((*words, *NUMBERS))
            elif kind == 5:
                other = chance.choice(examples)
                out[at:] = other[chance.randrange(len(other) + 1) :]
            elif kind == 6:
                del out[at:]
            elif kind == 7:
                out[at:at] = bytes(chance.choice(BYTES) for _ in range(4))
            elif numbers := list(_NUMBER.finditer(out)):
                place = chance.choice(numbers)
                out[place.start() : place.end()] = chance.choice(NUMBERS)
        return bytes(out[:LONGEST])

    return change


def of_json(data: bytes, chance: random.Random) -> bytes:
    """Parts of a JSON document replaced, removed, doubled or moved; what is none stays."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    for _ in range(chance.choice((1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = []
        if isinstance(document, dict | list):
            _places(document, places)
        if not places:
            return json.dumps(chance.choice(VALUES)).encode()
        holder, key = chance.choice(places)
        kind = chance.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == 1:
            holder[f"{key}x"] = copy.deepcopy(holder[key])
        elif kind == 2:
            other, place = chance.choice(places)
            holder[key] = copy.deepcopy(other[place])
        elif kind == 3:
            holder[key] = [holder[key]]
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _places(node: Any, into: list[tuple[Any, Any]]) -> None:
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in list(keys):
        into.append((node, key))
        if isinstance(node[key], dict | list):
            _places(node[key], into)


def of_message(make: Callable[[], Message]) -> Change:
    """Fields of a serialized protobuf message set to odd values, doubled, cleared or emptied."""

    def change(data: bytes, chance: random.Random) -> bytes:
        message = make()
        try:
            message.ParseFromString(data)
        except Exception:  # damaged before: stays so
            return data
        for _ in range(chance.choice((1, 1, 2, 4))):
            nodes = [message]
            for node in nodes:
                nodes += _below(node)
            _disturb(chance.choice(nodes), chance)
        return message.SerializePartialToString()

    return change


def _below(node: Message) -> list[Message]:
    messages: list[Message] = []
    for field, value in node.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        messages += [value] if isinstance(value, Message) else value
    return messages


def _disturb(node: Message, chance: random.Random) -> None:
    field = chance.choice(node.DESCRIPTOR.fields)
    if chance.random() < 0.25:
        node.ClearField(field.name)
        return
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return
        held: Any = getattr(node, field.name)
        if not isinstance(held, Message):
            if held and chance.random() < 0.6:
                held.add().CopyFrom(chance.choice(held))
            else:
                held.add()
        else:
            held.SetInParent()
        return
    kinds = {
        field.CPPTYPE_STRING: ["", "x", "y", "W", "../x", "é" * 40, "n" * 3000],
        field.CPPTYPE_BOOL: [True, False],
        field.CPPTYPE_FLOAT: [0.0, -1.0, float("inf"), float("nan"), 1e-40],
        field.CPPTYPE_DOUBLE: [0.0, -1.0, float("inf"), float("nan"), 1e-320],
    }
    values: list[Any] = kinds.get(
        field.cpp_type, [0, 1, -1, 2, 3, 5, 16, 31, 127, 2**31 - 1, -(2**31), 2**40, 2**63 - 1]
    )
    value = chance.choice(values)
    if field.type == field.TYPE_BYTES:
        value = chance.choice((b"", b"\0", b"\xff\xfe", b"\x01\0\0\0" * 9))
    try:
        if hasattr(held := getattr(node, field.name), "extend"):
            held.extend([value] * chance.choice((1, 1, 3)))
        else:
            setattr(node, field.name, value)
    except (ValueError, TypeError):  # beyond 32 bits, or below 0 where it cannot be
        node.ClearField(field.name)
