"""`ProfileRecord`: a table and how it was measured. This is the content of a profile file.

The repository stores it with the model file and the machine it belongs to; the record itself says
on which device and with which inputs it was measured, and what was skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from slacktide.domain import Signature
from slacktide.domain.tensors import fits
from slacktide.profiles import reading
from slacktide.profiles.latency_fit import SizeTime
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.size_law import elements

SCHEMA = 5
SHARELESS_SCHEMA = 4
"""An older schema that is also read; it lacks `cpu_share`."""
LENGTHS_SCHEMA = 3
"""An older schema that is also read; it lacks `cpu_share`, and sizes are padded lengths only."""
_KEYS = ("schema", "device", "hardware", "shapes", "skipped", "sizes", "threads", "table")
_SIZE_KEYS = ("rows", "cores", "size", "p50_s", "signature")
_LENGTH_KEYS = ("rows", "cores", "length", "p50_s")
MOST_AXES = 64
MOST_ELEMENTS = 1 << 53
MOST_SIZE = 1e9


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """A table and how it was measured."""

    table: LatencyTable
    shapes: Mapping[str, tuple[int, ...]]
    """Measured shape of each input by name, without the batch axis."""
    device: str = "cpu"
    """Device it ran on: `cpu`, `cuda:0`, …"""
    hardware: Mapping[str, str] | None = None
    """The facts behind the machine's fingerprint, for people; None for a stated table."""
    skipped: tuple[int, ...] = ()
    """Batch sizes that were too slow to measure or failed; the table extrapolates over them."""
    sizes: tuple[SizeTime, ...] = ()
    """Times of rows with other sizes than `shapes`: with other shapes or, if the model has padded
    axes, with other lengths."""
    threads: tuple[int, ...] = ()
    """Thread counts of the replica's sessions (`session_sizes`); empty for a stated table, which
    counts as valid for any sessions."""
    cpu_share: float | None = None
    """CPU time ÷ wall time of the runs, on the core count where it was lowest, 0 to 1
    (`CpuShare`); None if it was not measured."""

    def mismatch(
        self,
        *,
        cores: Iterable[int],
        max_batch: int,
        device: str = "cpu",
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        threads: Sequence[int] = (),
    ) -> str | None:
        """Why this record does not suit a deployment, as a sentence; None if it does.

        `cores`: the core counts that the model may get; `max_batch`: its largest batch (0: no batch
        axis); `shapes`: configured shapes of some inputs (−1: any); `threads`: sessions of its
        replicas (empty: not compared).
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
            if not fits(self.shapes.get(name, ()), shape):
                return f"was measured with a different shape of input {name!r}"
        if self.threads and threads:
            for count in cores:
                was, is_now = covering(self.threads, count), covering(threads, count)
                if was != is_now:
                    return f"was measured with {was} threads on {count} cores, not with {is_now}"
        return None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready (docs/internals/profile-files.md)."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "hardware": None if self.hardware is None else dict(self.hardware),
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "skipped": list(self.skipped),
            "sizes": plain_sizes(self.sizes),
            "threads": list(self.threads),
            "cpu_share": self.cpu_share,
            "table": self.table.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: object) -> ProfileRecord:
        """Read what `to_dict` wrote. Raises ProfileError, naming the field, for anything else."""
        schema = data.get("schema") if isinstance(data, Mapping) else None
        in_lengths = schema == LENGTHS_SCHEMA
        keys = tuple("lengths" if in_lengths and key == "sizes" else key for key in _KEYS)
        if schema not in (LENGTHS_SCHEMA, SHARELESS_SCHEMA):
            keys, schema = (*keys, "cpu_share"), SCHEMA
        fields = reading.mapping(data, "profile", keys)
        reading.schema(fields["schema"], schema, "schema")
        name, keys = ("lengths", _LENGTH_KEYS) if in_lengths else ("sizes", _SIZE_KEYS)
        share = fields.get("cpu_share")
        hardware = fields["hardware"]
        return cls(
            table=LatencyTable.from_dict(fields["table"]),
            shapes=reading.entries(fields["shapes"], "shapes", reading.whole_numbers),
            device=reading.text(fields["device"], "device"),
            hardware=None
            if hardware is None
            else reading.entries(hardware, "hardware", reading.text),
            skipped=reading.whole_numbers(fields["skipped"], "skipped"),
            sizes=read_sizes(fields[name], name, keys),
            threads=reading.whole_numbers(fields["threads"], "threads"),
            cpu_share=None if share is None else reading.fraction(share, "cpu_share"),
        )


def plain_sizes(sizes: Sequence[SizeTime]) -> list[dict[str, object]]:
    """JSON-ready."""
    return [
        dict(zip(_SIZE_KEYS, (*row[:4], [list(shape) for shape in row[4]]), strict=True))
        for row in sizes
    ]


def read_sizes(
    value: object, name: str, keys: tuple[str, ...] = _SIZE_KEYS
) -> tuple[SizeTime, ...]:
    """Read what `plain_sizes` wrote. Raises ProfileError, naming the field."""
    return reading.items(value, name, partial(_size_time, keys))


def _size_time(keys: tuple[str, ...], value: object, name: str) -> SizeTime:
    fields = reading.mapping(value, name, keys)
    rows, cores = (reading.whole_number(fields[key], f"{name}.{key}") for key in keys[:2])
    size, seconds = (reading.number(fields[key], f"{name}.{key}") for key in keys[2:4])
    if rows < 1 or cores < 1 or size <= 0.0 or seconds <= 0.0:
        raise ProfileError(f"{name}: expected numbers above 0")
    if not 1.0 / MOST_SIZE <= size <= MOST_SIZE:
        raise ProfileError(f"{name}.{keys[2]}: expected 1/{MOST_SIZE:g} to {MOST_SIZE:g}")
    signature = read_signature(fields.get("signature", []), f"{name}.signature")
    return SizeTime(rows, cores, size, seconds, signature)


def read_signature(value: object, name: str) -> Signature:
    """The shapes of a row's inputs, from lists of whole numbers. Raises ProfileError."""
    shapes = reading.rows(value, name, reading.whole_number)
    if sum(1 + len(shape) for shape in shapes) > MOST_AXES:
        raise ProfileError(f"{name}: expected at most {MOST_AXES} axes")
    if any(count < 0 for shape in shapes for count in shape):
        raise ProfileError(f"{name}: expected lists of whole numbers of at least 0")
    if elements(shapes) > MOST_ELEMENTS:
        raise ProfileError(f"{name}: expected at most {MOST_ELEMENTS} elements")
    return shapes


def session_sizes(least: int, most: int) -> tuple[int, ...]:
    """Thread counts of the sessions of a replica that runs on `least` to `most` cores, ascending.

    On fewer cores than threads, threads delay each other. So a replica that will be resized keeps
    several sessions, i.e. the model opened with different thread counts (decision 0021): both ends,
    and the powers of two between them. Raises ValueError unless 1 ≤ least ≤ most.
    """
    if not 1 <= least <= most:
        raise ValueError(f"expected 1 ≤ least ≤ most, got {least} and {most}")
    powers = (1 << power for power in range(most.bit_length()))
    return (*sorted({least, most, *(n for n in powers if least < n < most)}),)


def covering(threads: Sequence[int], cores: int) -> int:
    """The session to use on `cores` cores, by thread count: the smallest with a thread for each
    core, or else the largest. `threads` is not empty."""
    return min((n for n in threads if n >= cores), default=max(threads))
