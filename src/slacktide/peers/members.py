"""`Members`: which addresses a server dials, and which links it uses.

A server dials the addresses that it knows, up to `MAX_LINKS` links; if it knows more, it dials a
random sample. Two servers that have dialled each other keep only the link dialled by the machine
whose name sorts first, so both keep the same link.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from slacktide.peers.messages import PROTOCOL, PeerHello
from slacktide.peers.rule import Chance

MAX_LINKS: Final = 16
LEAST_WAIT_S: Final = 0.1
MOST_WAIT_S: Final = 2.0
"""Maximum seconds until an address is dialled again. The wait doubles with each failure and is
shortened at random, so that peers do not dial in step."""
ITSELF: Final = "this address is the server's own"
LINKED: Final = "already linked"


@dataclass(slots=True)
class _Address:
    """An address to dial."""

    due_at: float = -inf
    wait_s: float = LEAST_WAIT_S
    machine: str = ""
    """The machine that answered there last."""
    busy: bool = False
    """Whether it is dialled or linked."""
    why: str = ""
    """Why the last attempt to dial it, or the last link to it, ended."""


@dataclass(slots=True)
class _Member:
    """A peer that is linked."""

    link: Any
    instance: str
    dialled: bool


@dataclass(frozen=True, slots=True)
class LinkVerdict:
    """Whether a link is used."""

    refusal: str = ""
    """Why the link is not used, in a sentence; empty: it is used."""
    replaced: Any = None
    """The earlier link that this link replaces."""


class Members:
    """The peers of a server."""

    def __init__(
        self, machine: str, instance: str, rng: Chance, *, max_links: int = MAX_LINKS
    ) -> None:
        """`instance`: random text made at this server's start."""
        self._machine, self._instance, self._rng = machine, instance, rng
        self._max_links = max_links
        self._addresses: dict[str, _Address] = {}
        self._members: dict[str, _Member] = {}

    # ---------------------------------------------------------------- addresses

    def listed(self, addresses: Collection[str]) -> None:
        """Dial these addresses and no others. Existing links stay."""
        self._addresses = {
            address: self._addresses.get(address, _Address()) for address in addresses
        }

    def to_dial(self, *, now: float) -> list[str]:
        """The addresses to dial now. Call `ended` for each, once."""
        chosen: list[str] = []
        if self._has_room():
            due = [address for address, entry in self._free() if entry.due_at <= now]
            for address in sorted(due, key=lambda address: (self._rng.random(), address)):
                entry = self._addresses[address]
                if self._has_room() and not self._is_busy(entry.machine):
                    entry.busy = True
                    chosen.append(address)
        return chosen

    def next_wakeup(self) -> float | None:
        """Time at which the next address is due; None if there is nothing to dial."""
        if not self._has_room():
            return None
        return min((entry.due_at for _, entry in self._free()), default=None)

    def ended(self, address: str, why: str, *, now: float) -> None:
        """Record that the attempt to dial an address, or the link that it led to, has ended."""
        entry = self._addresses.get(address)
        if entry is not None and entry.busy:
            entry.busy, entry.why = False, why
            entry.due_at = now + entry.wait_s * (1.0 + self._rng.random()) / 2.0
            entry.wait_s = min(2.0 * entry.wait_s, MOST_WAIT_S)

    def _has_room(self) -> bool:
        """Whether one more link may be dialled. If not all peers can be linked, half of the links
        are left to servers that dial this server."""
        busy = sum(entry.busy for entry in self._addresses.values())
        accepted = sum(not member.dialled for member in self._members.values())
        most = self._max_links
        is_sample = len(self._addresses) > most
        return busy + accepted < most and busy < (most // 2 if is_sample else most)

    def _free(self) -> list[tuple[str, _Address]]:
        """The addresses that may be dialled once they are due."""
        return [
            (address, entry)
            for address, entry in self._addresses.items()
            if not entry.busy and entry.why != ITSELF and not self._is_busy(entry.machine)
        ]

    def _is_busy(self, machine: str) -> bool:
        """Whether a machine is linked, or dialled at another of its addresses."""
        entries = self._addresses.values()
        return machine != "" and (
            machine in self._members
            or any(entry.busy and entry.machine == machine for entry in entries)
        )

    # ---------------------------------------------------------------- links

    def admit(self, hello: PeerHello, link: object, *, address: str, dialled: bool) -> LinkVerdict:
        """Judge a link by its first hello. `address`: the address that was dialled."""
        machine, entry = hello.machine, self._addresses.get(address) if dialled else None
        if hello.protocol != PROTOCOL:
            return LinkVerdict(
                f"protocol {hello.protocol} of {machine!r} (release {hello.release}): "
                f"{self._machine!r} speaks protocol {PROTOCOL}"
            )
        if hello.instance and hello.instance == self._instance:
            return LinkVerdict(ITSELF)
        if machine == self._machine:
            return LinkVerdict(f"two servers are named {machine!r}: give each its own --machine")
        if entry is not None:
            entry.machine = machine
        replaced, member = None, self._members.get(machine)
        if member is not None:
            if member.instance != hello.instance:
                return LinkVerdict(f"another server is linked under the name {machine!r}")
            if dialled == member.dialled or dialled != (self._machine < machine):
                return LinkVerdict(LINKED)
            replaced = member.link
        elif len(self._members) >= self._max_links:
            return LinkVerdict(f"{self._machine!r} has {self._max_links} peers already")
        if entry is not None:
            entry.wait_s, entry.why = LEAST_WAIT_S, ""
        self._members[machine] = _Member(link, hello.instance, dialled)
        return LinkVerdict(replaced=replaced)

    def holds(self, link: object, machine: str) -> bool:
        """Whether the link to a machine is used."""
        member = self._members.get(machine)
        return member is not None and member.link is link

    def left(self, link: object, machine: str) -> bool:
        """Record that a link has ended. Returns whether it was used."""
        used = self.holds(link, machine)
        if used:
            del self._members[machine]
        return used

    def links(self) -> list[Any]:
        """The links that are used, sorted by the names of their machines."""
        return [self._members[machine].link for machine in sorted(self._members)]

    def addresses(self) -> list[tuple[str, str, str]]:
        """Each address, the machine that answered there, and why it is not linked."""
        return [
            (address, entry.machine, "" if entry.machine in self._members else entry.why)
            for address, entry in self._addresses.items()
        ]
