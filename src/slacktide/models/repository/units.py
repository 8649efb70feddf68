"""Values with units (`slacktide.domain.units`) as types of pydantic fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from slacktide.domain.units import (
    format_bytes,
    format_percent,
    format_seconds,
    parse_bytes,
    parse_percent,
    parse_seconds,
)

Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    PlainSerializer(format_seconds, return_type=str, when_used="json"),
]
"""A pydantic field in seconds, written with a unit."""

ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(format_bytes, return_type=str, when_used="json"),
]
"""A pydantic field in bytes, written with a unit or as a whole number."""

Percent = Annotated[
    float,
    BeforeValidator(parse_percent),
    PlainSerializer(format_percent, return_type=str, when_used="json"),
]
"""A pydantic field that is a share, 0 to 1, written as a percentage."""
