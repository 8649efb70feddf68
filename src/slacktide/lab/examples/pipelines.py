"""The example pipelines: their models and files, and frames with the correct answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

from slacktide.lab.examples.road_users import FRAME
from slacktide.lab.examples.street import Scene, Street


@dataclass(frozen=True, slots=True)
class ExamplePipeline:
    """An example pipeline, made of example models."""

    name: str
    summary: str
    models: tuple[str, ...]
    """Models of the stages, the detector first."""

    def extras(self) -> dict[str, bytes]:
        """Return the pipeline's files by name."""
        folder = resources.files("slacktide.lab.examples") / "models" / self.name
        return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


PIPELINES: Mapping[str, ExamplePipeline] = {
    pipeline.name: pipeline
    for pipeline in (
        ExamplePipeline(
            "traffic",
            "pipeline that finds vehicles, and their brands and plates",
            ("street", "brand", "plate"),
        ),
        ExamplePipeline(
            "surveillance",
            "pipeline that finds people, their directions, and the colours of their coats",
            ("street", "clothing", "direction"),
        ),
    )
}
"""Every example pipeline by name."""


def pipeline_frames(seed: int, *, traffic: float | None = None, start: int = 0) -> Iterator[Scene]:
    """Yield frames of one street in the form that the example pipelines take, without end. Equal
    seeds give equal frames. `traffic`: see `Street`."""
    street = Street(seed, traffic=traffic)
    number = start
    while True:
        yield street.scene(number, FRAME)
        number += 1
