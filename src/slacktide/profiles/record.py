"""`ProfileRecord`: a table together with what it is true of. This is the file's content.

A profile holds for one model file, on one kind of hardware, with one set of input shapes. The
record carries all three, so that whoever finds the file can tell whether it applies. (Taking the
fingerprint means reading the machine: executors/cores.py does that.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from slacktide.profiles import reading
from slacktide.profiles.errors import ProfileError
from slacktide.profiles.latency_table import LatencyTable

SCHEMA = 1
_KEYS = (
    "schema",
    "model",
    "model_sha256",
    "fingerprint",
    "hardware",
    "device",
    "shapes",
    "skipped",
    "table",
)


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """A measured table and what it was measured on."""

    model: str
    model_sha256: str
    """Of the model file, with its external data if it has any; 64 hexadecimal digits."""
    fingerprint: str
    """Of the hardware and the runtime: equal fingerprints may share profiles."""
    hardware: Mapping[str, str]
    """The same for people: what the fingerprint was made of."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each input as measured, without the batch axis."""
    table: LatencyTable
    device: str = "cpu"
    """Device of the lane it ran on."""
    skipped: tuple[int, ...] = ()
    """Batch sizes that were too slow to measure or failed; the table extrapolates over them."""

    def __post_init__(self) -> None:
        digits = self.model_sha256
        if len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
            raise ProfileError("model_sha256: expected 64 hexadecimal digits")

    @property
    def key(self) -> str:
        """Names the profile of this model file on this hardware; fit for a file name."""
        return profile_key(self.model_sha256, self.fingerprint, self.device)

    def covers(self, cores: int, max_batch: int) -> bool:
        """Whether the table was measured for this many cores, up to this batch or its end."""
        return cores in self.table.cores and (
            self.table.max_batch >= max_batch or bool(self.skipped)
        )

    def to_dict(self) -> dict[str, object]:
        """JSON-ready; docs/profiles.md explains each field."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "model_sha256": self.model_sha256,
            "fingerprint": self.fingerprint,
            "hardware": dict(self.hardware),
            "device": self.device,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "skipped": list(self.skipped),
            "table": self.table.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: object) -> ProfileRecord:
        """Raises ProfileError, naming the field, for anything `to_dict` would not have made."""
        fields = reading.mapping(data, "profile", _KEYS)
        reading.schema(fields["schema"], SCHEMA, "schema")
        return cls(
            model=reading.text(fields["model"], "model"),
            model_sha256=reading.text(fields["model_sha256"], "model_sha256"),
            fingerprint=reading.text(fields["fingerprint"], "fingerprint"),
            hardware=reading.entries(fields["hardware"], "hardware", reading.text),
            shapes=reading.entries(fields["shapes"], "shapes", reading.whole_numbers),
            table=LatencyTable.from_dict(fields["table"]),
            device=reading.text(fields["device"], "device"),
            skipped=reading.whole_numbers(fields["skipped"], "skipped"),
        )


def profile_key(model_sha256: str, fingerprint: str, device: str = "cpu") -> str:
    """Sixteen hexadecimal digits for (model file, hardware, device)."""
    text = "\n".join((model_sha256, fingerprint, device))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
