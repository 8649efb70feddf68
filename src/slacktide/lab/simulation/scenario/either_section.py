"""`EitherSection`: a section of a scenario that states one thing in one of two ways."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from slacktide.models.repository import Section


class EitherSection(Section):
    """A section that states just one of its first two keys."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        first, second = list(type(self).model_fields)[:2]
        if (getattr(self, first) is None) == (getattr(self, second) is None):
            raise ValueError(f"expected either {first!r} or {second!r}")
        return self
