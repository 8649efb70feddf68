"""What bench/pipeline_server.py has written of frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Seen:
    """What the server's log says."""

    batches: dict[int, list[tuple[str, float, float]]] = field(default_factory=dict)
    """By frame: model, when it was reported, seconds of it that are the model's and its outputs."""
    freed: list[float] = field(default_factory=list)
    """When."""
    costs: list[float] = field(default_factory=list)
    """Of frames that came one by one: CPU seconds of the loop for each request of a stage."""
    spent_s: float = 0.0
    """Seconds of batches, shared out among their members."""
    wasted_s: float = 0.0
    """Those of members whose frame had ended."""

    @classmethod
    def of(cls, lines: list[str]) -> Seen:
        log, before = cls(), None
        ended: dict[str, float] = {}
        for line in lines:
            kind, *rest = line.split()
            if kind == "ended":
                ended[rest[0]] = float(rest[1])
            elif kind == "freed":
                log.freed.append(float(rest[1]))
                spent, children = float(rest[2]), int(rest[3])
                if before is not None and children > before[1]:
                    log.costs.append((spent - before[0]) / (children - before[1]))
                before = spent, children
            else:
                model, seconds, _, infer, output, whole, *frames = rest
                at, length = float(seconds), float(whole)
                for frame in frames:
                    share = length / len(frames)
                    log.spent_s += share
                    log.wasted_s += share * min(1.0, max(0.0, at - ended.get(frame, at)) / length)
                    if frame != "None":
                        batch = (model, at, float(infer) + float(output))
                        log.batches.setdefault(int(frame), []).append(batch)
        return log


class FrameLog:
    """Reads what was written since the last call."""

    def __init__(self, path: Path) -> None:
        self._file = path.open()

    def __call__(self) -> Seen:
        return Seen.of(self._file.readlines())
