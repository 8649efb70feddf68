"""What a profile can complain of."""

from __future__ import annotations


class ProfileError(ValueError):
    """A table, a file or a question that makes no sense. The message names the field."""
