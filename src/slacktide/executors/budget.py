"""`MemoryBudget`: a limit on payload bytes across arenas, with a cap for each owner."""

from __future__ import annotations

from collections.abc import Hashable


class MemoryLimitExceeded(Exception):  # noqa: N818  (the name says what happened)
    """The bytes do not fit under a limit. The other side's load, not its mistake."""


class OwnerLimitExceeded(MemoryLimitExceeded):
    """They would fit, but this owner (a connection, a client) has had its part."""


class MemoryBudget:
    """Counts bytes against `limit` in all and `per_owner` for each owner other than None.

    Charged when memory is set aside, released when it is free again. Not thread-safe.
    """

    def __init__(self, limit: int, per_owner: int | None = None) -> None:
        if limit < 1 or (per_owner is not None and per_owner < 1):
            raise ValueError(f"limits must be positive, got {limit} and {per_owner} per owner")
        self.limit = limit
        self.per_owner = per_owner
        self._in_use = 0
        self._owners: dict[Hashable, int] = {}

    @property
    def bytes_in_use(self) -> int:
        return self._in_use

    def owned(self, owner: Hashable) -> int:
        """Bytes that `owner` has charged."""
        return self._owners.get(owner, 0)

    def charge(self, nbytes: int, owner: Hashable = None) -> None:
        """Count `nbytes`; raises MemoryLimitExceeded or OwnerLimitExceeded, counting nothing."""
        total = self._in_use + nbytes
        if total > self.limit:
            raise MemoryLimitExceeded(
                f"{nbytes} bytes do not fit: {self._in_use} of {self.limit} in use"
            )
        if owner is not None:
            owned = self._owners.get(owner, 0) + nbytes
            if self.per_owner is not None and owned > self.per_owner:
                raise OwnerLimitExceeded(
                    f"{nbytes} bytes do not fit: one client may hold {self.per_owner}"
                )
            self._owners[owner] = owned
        self._in_use = total

    def release(self, nbytes: int, owner: Hashable = None) -> None:
        """Take back what `charge` counted. Raises ValueError if it never did."""
        left = self._owners.get(owner, 0) - nbytes if owner is not None else 0
        if nbytes > self._in_use or left < 0:
            raise ValueError(f"{nbytes} bytes were never charged")
        self._in_use -= nbytes
        if owner is not None:
            if left:
                self._owners[owner] = left
            else:
                del self._owners[owner]
