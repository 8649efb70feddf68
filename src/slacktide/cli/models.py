"""`slacktide models check DIR`; `models make` is in `slacktide.lab.cli.models`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slacktide.cli.flags import Glue, offer_glue
from slacktide.cli.output import FELL_SHORT, fail, print_json

models = typer.Typer(
    name="models", help="Make example models; check a repository.", add_completion=False
)


@models.callback()
def _group() -> None:
    """Make example models; check a repository."""


@models.command()
def check(
    repository: Annotated[Path, typer.Argument(help="Folder of models, or one ONNX file.")],
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Only read the files; do not load the models.")
    ] = False,
    glue: Glue = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read and load every model as the server would, and report problems. Exits 1 on errors.
    Outside Linux, only the files are read.

    Example: slacktide models check models/
    """
    import asyncio

    from slacktide.executors.cores import available_cores
    from slacktide.models.check import Finding, Severity, check_repository, try_loading
    from slacktide.models.repository.errors import RepositoryError
    from slacktide.models.repository.single_model import open_repository

    if not repository.exists():
        fail(f"{repository}: no such file or folder")
    offer_glue(glue)
    try:
        findings = check_repository(repository)
        broken = {finding.model for finding in findings if finding.severity is Severity.ERROR}
        if sys.platform != "linux" and not files_only:
            findings.append(
                Finding("", Severity.NOTE, "checked only files: models load only on Linux")
            )
        elif not files_only and "" not in broken:
            findings += asyncio.run(try_loading(repository, available_cores(), skip=broken))
            findings.sort(key=lambda finding: finding.model)
    except RepositoryError as error:
        fail(str(error))
    if json:
        print_json(findings)
    else:
        for finding in findings:
            where = finding.model or repository
            message = finding.message.removeprefix(f"{where}: ")
            typer.echo(f"{finding.severity.value}: {where}: {message}")
        if all(finding.severity is Severity.NOTE for finding in findings):
            count = len(open_repository(repository).names())
            typer.echo(f"{count} model{'s' * (count != 1)} checked, no problems")
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(FELL_SHORT)
