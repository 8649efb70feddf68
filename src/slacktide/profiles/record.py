"""`ProfileRecord`: a table together with how it was measured. This is what a profile file holds.

Which model file and which machine it belongs to is the keeper's business (the repository wraps a
record with both); this says on what device, with what inputs, and what was left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slacktide.profiles import reading
from slacktide.profiles.latency_fit import LengthTime
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.reading import ProfileError

SCHEMA = 3
_KEYS = ("schema", "device", "hardware", "shapes", "skipped", "lengths", "threads", "table")
_LENGTH_KEYS = ("rows", "cores", "length", "p50_s")


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """A measured table and how it came about."""

    table: LatencyTable
    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each input as measured, by name, without the batch axis."""
    device: str = "cpu"
    """Device it ran on: `cpu`, `cuda:0`, …"""
    hardware: Mapping[str, str] | None = None
    """What the machine's fingerprint was made of, for people; None for a stated table."""
    skipped: tuple[int, ...] = ()
    """Batch sizes that were too slow to measure or failed; the table extrapolates over them."""
    lengths: tuple[LengthTime, ...] = ()
    """Times at other lengths than that of `shapes`, where the model has padded axes."""
    threads: tuple[int, ...] = ()
    """Thread counts of the sessions that the replica was to have (`session_sizes`); none for a
    stated table, which is taken to hold for any."""

    def mismatch(
        self,
        *,
        cores: Iterable[int],
        max_batch: int,
        device: str = "cpu",
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        threads: Sequence[int] = (),
    ) -> str | None:
        """Why this record does not do for a deployment, as a sentence; None if it does.

        `cores` are the core counts the model may get, `max_batch` its largest batch (0: no batch
        axis), `shapes` the shapes that its configuration states for some of its inputs, `threads`
        the sessions its replicas are to have (none: not compared).
        """
        cores = sorted(set(cores))
        if device != self.device:
            return f"was measured on {self.device}, not on {device}"
        missing = [count for count in cores if count not in self.table.cores]
        if missing:
            return f"was not measured on {', '.join(map(str, missing))} cores"
        if self.table.max_batch < max_batch and not self.skipped:
            return f"was measured up to batch {self.table.max_batch}, not {max_batch}"
        for name, shape in (shapes or {}).items():
            if self.shapes.get(name) != shape:
                return f"was measured with input {name!r} of another shape"
        if self.threads and threads:
            for count in cores:
                was, is_now = covering(self.threads, count), covering(threads, count)
                if was != is_now:
                    return f"was measured with {was} threads on {count} cores, not with {is_now}"
        return None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready; docs/profiles.md explains each field."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "hardware": None if self.hardware is None else dict(self.hardware),
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "skipped": list(self.skipped),
            "lengths": [dict(zip(_LENGTH_KEYS, one, strict=True)) for one in self.lengths],
            "threads": list(self.threads),
            "table": self.table.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: object) -> ProfileRecord:
        """Raises ProfileError, naming the field, for anything `to_dict` would not have made."""
        fields = reading.mapping(data, "profile", _KEYS)
        reading.schema(fields["schema"], SCHEMA, "schema")
        hardware = fields["hardware"]
        return cls(
            table=LatencyTable.from_dict(fields["table"]),
            shapes=reading.entries(fields["shapes"], "shapes", reading.whole_numbers),
            device=reading.text(fields["device"], "device"),
            hardware=None
            if hardware is None
            else reading.entries(hardware, "hardware", reading.text),
            skipped=reading.whole_numbers(fields["skipped"], "skipped"),
            lengths=reading.items(fields["lengths"], "lengths", _length_time),
            threads=reading.whole_numbers(fields["threads"], "threads"),
        )


def _length_time(value: object, name: str) -> LengthTime:
    fields = reading.mapping(value, name, _LENGTH_KEYS)
    rows, cores = (reading.whole_number(fields[key], f"{name}.{key}") for key in _LENGTH_KEYS[:2])
    length, seconds = (reading.number(fields[key], f"{name}.{key}") for key in _LENGTH_KEYS[2:])
    if rows < 1 or cores < 1 or length <= 0.0 or seconds <= 0.0:
        raise ProfileError(f"{name}: expected numbers above 0")
    return LengthTime(rows, cores, length, seconds)


def session_sizes(least: int, most: int) -> tuple[int, ...]:
    """Thread counts of the sessions of a replica that runs on `least` to `most` cores, ascending.

    On fewer cores than threads these get in each other's way, so a replica that will be resized
    keeps several sessions, that is the model opened with so many threads each (decision 0021).
    Both ends, and the powers of two between them. Raises ValueError unless 1 ≤ least ≤ most.
    """
    if not 1 <= least <= most:
        raise ValueError(f"expected 1 ≤ least ≤ most, got {least} and {most}")
    powers = (1 << power for power in range(most.bit_length()))
    return (*sorted({least, most, *(n for n in powers if least < n < most)}),)


def covering(threads: Sequence[int], cores: int) -> int:
    """Of sessions with these thread counts (at least one), the one to use on `cores` cores: the
    smallest with a thread for each, or else the largest."""
    return min((n for n in threads if n >= cores), default=max(threads))
