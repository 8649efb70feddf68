"""The other half of `slacktide models check`: whether each model loads on this machine.

It is opened, warmed up and run in a worker process, by what a load measures a profile with; so
what a load refuses is refused here (a size that memory cannot hold, a device that is not there),
and a file that ends its process ends a worker only. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from slacktide.executors import ProcessExecutor
from slacktide.executors.measuring import measure
from slacktide.executors.timed_replica import MeasuringError
from slacktide.models.fleet import machine_reason
from slacktide.models.lanes import LaneError, lay_out
from slacktide.models.launching import source_of
from slacktide.models.repository import Finding, ModelSettings, Repository, Severity
from slacktide.models.repository.settings_file import SETTINGS_FILE

_BUDGET_S = 0.01
"""Of measuring: so little that one row is all that is sure to be run."""


async def try_loading(
    root: Path, cores: Sequence[int], *, skip: Collection[str] = ()
) -> list[Finding]:
    """An error for each model, other than those of `skip`, that would not load on these `cores`.

    Models share the cores in the order of their names, as a start of the server has it. Raises
    RepositoryError if the folder cannot be read.
    """
    findings: list[Finding] = []
    fitting: dict[str, ModelSettings] = {}
    executor = ProcessExecutor()
    try:
        for listed in Repository(root).scan():
            if listed.name in skip or not listed.definitions:
                continue
            try:
                beside = {**fitting, listed.name: listed.definitions[0].settings}
                layout = lay_out(beside, cores)
                lane = layout.scaled_lane(listed.name)
                for definition in listed.definitions:
                    threads = () if lane is None else lane.threads(definition.settings)
                    await measure(
                        executor,
                        source_of(definition, threads),
                        cores=[each or (0,) for each in layout.core_sets(listed.name)],
                        device=definition.settings.device,
                        budget_s=_BUDGET_S,
                    )
            except LaneError as error:
                message = f"{listed.name}/{SETTINGS_FILE}: {error}"
                findings.append(Finding(listed.name, Severity.ERROR, message))
            except (MeasuringError, OSError, MemoryError) as error:
                why = str(error) if isinstance(error, MeasuringError) else machine_reason(error)
                message = f"{definition.where}: {why}"
                findings.append(Finding(listed.name, Severity.ERROR, message))
            else:
                fitting = beside
    finally:
        await executor.close()
    return findings
