"""`slacktide cluster up FILE`, `cluster status` and `cluster down`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slacktide.cli.output import FELL_SHORT, console, fail, print_json

if TYPE_CHECKING:
    from slacktide.cluster.file import ClusterFile

cluster = typer.Typer(
    name="cluster", help="Keep several servers running, as one.", add_completion=False
)

_LOOK_S = 0.2
_SUPERVISOR_S = 10.0
"""Time that a supervisor gets to begin."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StatedFile = Annotated[
    Path | None,
    typer.Argument(help="The cluster's file; may be left out if there is only one cluster here."),
]


@cluster.command()
def up(
    file: Annotated[Path, typer.Argument(help="YAML file with the servers.")],
    local: Annotated[
        bool, typer.Option("--local", help="Run processes of this machine, without Ray.")
    ] = False,
    timeout: Annotated[
        str, typer.Option(help="Maximum wait for the servers to be ready.", metavar="TIME")
    ] = "5m",
    as_json: Json = False,
) -> None:
    """Start the servers of a file, or change those that run, and wait until they are ready. Exits 1
    if one is not.

    Servers whose flags or release changed are replaced one at a time; others go on untouched.
    Without --local, Ray Serve runs the servers on the nodes of a Ray cluster.

    Example: slacktide cluster up examples/cluster.yaml --local

    Example: slacktide cluster up cluster.yaml
    """
    from slacktide.cli.output import seconds_of
    from slacktide.cluster import local as here
    from slacktide.cluster.file import read_cluster_file
    from slacktide.models.repository.errors import RepositoryError

    patience = seconds_of("--timeout", timeout)
    try:
        document = read_cluster_file(file)
    except RepositoryError as error:
        fail("\nerror: ".join(f"{error.where}: {problem}" for problem in error.problems))
    _check_flags(file, document)
    folder, path = here.clusters_folder() / document.name, file.resolve()
    plan, message = here.running_plan(folder), ""
    if plan is not None and plan.on_ray == local:
        place = "on Ray: leave out --local" if plan.on_ray else "on this machine: add --local"
        fail(f"{document.name} runs {place}, or end it with cluster down")
    if plan is not None and plan.file != path:
        fail(f"{plan.file} has this name too, and runs: state another one, or end it first")
    if not local:
        _ray(lambda ray: ray.deploy(document))
    try:
        if local:
            here.place(document, folder, path)
            here.end_earlier_supervisor(folder)  # a supervisor of this release follows
            message = _await_ready(folder, patience, shown=not as_json)
        else:
            here.write_plan(folder, here.ClusterPlan(path, on_ray=True))
    except OSError as error:
        fail(f"{folder}: {error.strerror or error}")
    if as_json or not message:
        _show(folder, as_json=as_json)
    if message:
        fail(f"{message}; logs are in {folder}", FELL_SHORT)


def _await_ready(folder: Path, patience: float, *, shown: bool) -> str:
    """Start a supervisor if there is none, and return when the newest plan has been carried out and
    all servers are ready. Returns the problem if a server fails, or after `patience` seconds."""
    from slacktide.cluster.local import read_plan, server_states, start_supervisor, supervisor_of
    from slacktide.cluster.supervisor import ServerPhase

    began, text = time.monotonic(), ""
    started_at: float | None = None
    while True:
        supervisor, elapsed = supervisor_of(folder), time.monotonic() - began
        if supervisor is None:  # maybe because `cluster down` has just ended it
            if started_at is None:
                start_supervisor(folder)
                started_at = elapsed
            elif elapsed > started_at + _SUPERVISOR_S:
                return "the supervisor ended"
        report = {} if supervisor is None else supervisor.document
        states, update = list(server_states(folder)), str(report.get("update", ""))
        now = "; ".join(filter(None, (update, *(f"{s['name']}: {s['state']}" for s in states))))
        if shown and now != text:
            typer.echo(now, err=True)
        text, is_settled = now, report.get("revision") == read_plan(folder).revision
        if is_settled and all(state["state"] == ServerPhase.READY for state in states):
            return ""
        failed = [state for state in states if state["state"] == ServerPhase.PAUSED]
        is_halted = update.startswith("halted")
        if elapsed > patience or (is_settled and (failed or is_halted)):
            for state in failed:
                typer.echo(f"{state['name']}: {state['message']}", err=True)
            return update if is_halted else "not every server is ready"
        time.sleep(_LOOK_S)


@cluster.command()
def status(file: StatedFile = None, as_json: Json = False) -> None:
    """Show the servers of a cluster. Exits 1 if one is not ready, or nothing restarts them.

    Example: slacktide cluster status

    Example: slacktide cluster status examples/cluster.yaml --json
    """
    if not _show(_folder(file), as_json=as_json):
        raise typer.Exit(FELL_SHORT)


@cluster.command()
def down(file: StatedFile = None) -> None:
    """Stop the servers of a cluster, after they have answered their requests.

    Example: slacktide cluster down
    """
    from slacktide.cluster import local as here

    folder = _folder(file)
    if here.read_plan(folder).on_ray:
        _ray(lambda ray: ray.delete(folder.name))
        (folder / here.PLAN).unlink()
        return
    count = sum(state["pid"] is not None for state in here.server_states(folder))
    asyncio.run(here.stop_all(folder))
    typer.echo(f"stopped {count} server{'s' * (count != 1)}")


def _ray(work: Callable[[Any], Any]) -> Any:
    """Call `work` with the module for Ray, on the Ray cluster of this machine, and return its
    result. Ends the program if the cluster cannot be reached, or the work fails."""
    try:
        from slacktide import ray
    except ImportError as error:
        fail(f"{error.name} is missing: pip install 'slacktide[ray]', or add --local")
    try:
        ray.connect()
        return work(ray)
    except ConnectionError:
        start = "RAY_AUTH_MODE=token ray start --head --include-dashboard=false"
        fail(f"no Ray cluster here: start one with {start}, or add --local", FELL_SHORT)
    except RuntimeError as error:
        fail(str(error), FELL_SHORT)


def _check_flags(file: Path, document: ClusterFile) -> None:
    """End the program if `slacktide serve` would refuse the flags of a server."""
    from click import ClickException

    from slacktide.cli.main import app

    for server in document.servers:
        flags = document.flags(server, name=server.name, address=("127.0.0.1", 8000))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(json.dumps(flags))
            config.flush()
            words = ["serve", "--config", config.name, "--print-config", "."]
            errors, code = io.StringIO(), 0
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                try:
                    code = app(words, standalone_mode=False)
                except ClickException as error:
                    code = error.exit_code
                    errors.write(error.format_message())
        if code:  # otherwise there are warnings at most
            message = errors.getvalue().strip().removeprefix("error: ").removeprefix("--config: ")
            message = message.replace(config.name, "serve")
            fail(f"{file}: servers: {server.name}: serve: {message}")


def _folder(file: Path | None) -> Path:
    """Return the folder of the cluster of `file`, or of the only cluster. Ends the program if there
    is none, or several."""
    from slacktide.cluster.file import read_cluster_file
    from slacktide.cluster.local import PLAN, clusters_folder, read_plan, running_plan
    from slacktide.models.repository.errors import RepositoryError

    parent, name = clusters_folder(), "*"
    if file is not None:
        try:
            name = read_cluster_file(file).name
        except RepositoryError as error:
            fail(str(error))
    folders = sorted(path.parent for path in parent.glob(f"{name}/{PLAN}"))
    if len(folders) > 1:
        folders = list(filter(running_plan, folders)) or folders
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders)
        fail(f"there are several clusters here ({names}): state the file")
    if not folders:
        fail("no cluster here; start one with: slacktide cluster up FILE --local")
    plan = running_plan(folders[0])
    # If the file of the cluster is gone, it may have been moved to `file`.
    if file and plan and plan.file != file.resolve() and plan.file.exists():
        fail(f"{plan.file} has this name too, and runs: state it instead")
    try:
        read_plan(folders[0])
    except OSError as error:
        fail(str(error))
    return folders[0]


def _show(folder: Path, *, as_json: bool) -> bool:
    """Print the servers of a cluster. Returns whether all are ready and supervised."""
    from rich.table import Table

    from slacktide.cluster.local import read_plan, server_states, supervisor_of

    document: dict[str, Any] = {"name": folder.name}
    hint = ""
    if read_plan(folder).on_ray:
        rows = document["pools"] = _ray(lambda ray: ray.states(folder.name))
        document["ready"] = bool(rows) and all(row["state"] == "healthy" for row in rows)
        headings = ["name", "state", "replicas", "message"]
    else:
        supervisor, rows = supervisor_of(folder), list(server_states(folder))
        document["supervisor"] = None if supervisor is None else supervisor.pid
        document["update"] = "" if supervisor is None else supervisor.document.get("update", "")
        document["servers"] = rows
        is_ready = all(row["state"] == "ready" for row in rows)
        document["ready"] = is_ready and supervisor is not None
        headings = ["name", "state", "pid", "http", "grpc", "metrics", "restarts", "message"]
        hint = "nothing restarts these servers: run slacktide cluster up FILE --local"
        hint = hint if supervisor is None else document["update"]
    if as_json:
        print_json(document)
        return bool(document["ready"])
    table = Table(*headings, title=f"cluster {folder.name}")
    for row in rows:
        ports = {name: f"{row['host']}:{port}" for name, port in row.get("ports", {}).items()}
        cells = ({**row, **ports}.get(heading) for heading in headings)
        table.add_row(*("" if cell is None else str(cell) for cell in cells))
    console().print(table)
    if hint:
        typer.echo(hint)
    return bool(document["ready"])
