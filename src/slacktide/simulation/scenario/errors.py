"""What is wrong with a scenario: each thing with its place and its key."""

from __future__ import annotations

from collections.abc import Sequence

from slacktide.simulation.errors import SimulationError


class ScenarioError(SimulationError):
    """A scenario that cannot be; `problems` are sentences of the form `where: key: expected …`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[ScenarioError], tuple[tuple[str, ...]]]:
        """As it is, also from another process."""
        return ScenarioError, (self.problems,)
