"""`ProfileRecord`: a table together with what it is true of. This is the file's content.

A profile holds for one model file, on one kind of hardware, with one set of input shapes. The
record carries all three, so that whoever finds the file can tell whether it applies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from slacktide.profiles import reading
from slacktide.profiles.errors import ProfileError
from slacktide.profiles.latency_table import LatencyTable

SCHEMA = 1
_KEYS = ("schema", "model", "model_sha256", "hardware", "shapes", "skipped", "table")
_HARDWARE_KEYS = ("cpu", "features", "runtime", "device")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What batch times depend on, besides the model and the number of cores.

    Not in it: how many cores there are (the table has its own), and how busy they were.
    """

    cpu: str
    """Model name as the kernel gives it."""
    features: tuple[str, ...]
    """Vector instruction sets, sorted: virtual machines hide the model behind a common name."""
    runtime: str
    """Name and version of what ran the model, e.g. `onnxruntime 1.22.0`."""
    device: str = "cpu"
    """Execution providers wanted, or `cpu`."""

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits, for file names and comparisons."""
        return _digest(self.to_dict())

    def to_dict(self) -> dict[str, object]:
        return {
            "cpu": self.cpu,
            "features": list(self.features),
            "runtime": self.runtime,
            "device": self.device,
        }

    @classmethod
    def from_dict(cls, data: object) -> Hardware:
        """Raises ProfileError, naming the field."""
        fields = reading.mapping(data, "hardware", _HARDWARE_KEYS)
        return cls(
            reading.text(fields["cpu"], "hardware.cpu"),
            reading.items(fields["features"], "hardware.features", reading.text),
            reading.text(fields["runtime"], "hardware.runtime"),
            reading.text(fields["device"], "hardware.device"),
        )


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """A measured table and what it was measured on."""

    model: str
    model_sha256: str
    """Of the model file, with its external data if it has any; 64 hexadecimal digits."""
    hardware: Hardware
    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each input as measured, without the batch axis."""
    table: LatencyTable
    skipped: tuple[int, ...] = ()
    """Batch sizes that were too slow to measure or failed; the table extrapolates over them."""

    def __post_init__(self) -> None:
        digits = self.model_sha256
        if len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
            raise ProfileError("model_sha256: expected 64 hexadecimal digits")

    @property
    def key(self) -> str:
        """Names the profile of this model file on this hardware; fit for a file name."""
        return profile_key(self.model_sha256, self.hardware)

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
            "hardware": self.hardware.to_dict(),
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "skipped": list(self.skipped),
            "table": self.table.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: object) -> ProfileRecord:
        """Raises ProfileError, naming the field, for anything `to_dict` would not have made."""
        fields = reading.mapping(data, "profile", _KEYS)
        reading.schema(fields["schema"], SCHEMA, "schema")
        shapes = fields["shapes"]
        if not isinstance(shapes, Mapping):
            raise ProfileError("shapes: expected an object")
        return cls(
            reading.text(fields["model"], "model"),
            reading.text(fields["model_sha256"], "model_sha256"),
            Hardware.from_dict(fields["hardware"]),
            {
                reading.text(name, "shapes"): reading.whole_numbers(shape, f"shapes.{name}")
                for name, shape in shapes.items()
            },
            LatencyTable.from_dict(fields["table"]),
            reading.whole_numbers(fields["skipped"], "skipped"),
        )


def profile_key(model_sha256: str, hardware: Hardware) -> str:
    """Sixteen hexadecimal digits for (model file, hardware)."""
    return _digest([model_sha256, hardware.to_dict()])


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
