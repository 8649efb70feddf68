"""Packages lie in layers: imports point downwards, pure packages stay pure, all have their page."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "slacktide"

# Low to high; packages of one layer do not know each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("domain",),
    ("profiles",),
    ("engine",),
    ("scheduling",),
    ("pipelines",),
    ("planning",),
    ("recording",),
    ("runtime",),
    ("exits",),
    ("executors",),
    ("peers",),
    ("wire",),
    ("models",),
    ("cluster",),
    ("frontends", "client"),
    ("observability",),
    ("server",),
    ("cli",),
    # What serves ends here, and imports nothing of lab.
    ("lab/workloads",),
    ("lab/netem", "lab/replay"),
    ("lab/load",),
    ("lab/simulation",),
    ("testing",),
    ("lab/reports",),
    ("lab/examples",),
    ("lab/cli",),
)
PURE = (
    "domain", "profiles", "engine", "scheduling", "pipelines", "planning", "runtime", "peers",
    "lab/workloads",
)  # fmt: skip
IMPURE_MODULES = {
    "asyncio",
    "concurrent",
    "datetime",
    "io",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "uvloop",
    "grpc",
    "httptools",
    "onnx",
    "onnxruntime",
}
BLAS = {"dot", "linalg", "matmul", "polyfit", "vdot"}
UNSAFE = {"pickle", "shelve", "marshal", "dill", "cloudpickle", "joblib"}


@cache
def imports_of(path: Path) -> set[str]:
    """Every module that a file imports anywhere, by its full name."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules.add(node.module or "")
            if node.module == "slacktide":
                modules.update(f"slacktide.{alias.name}" for alias in node.names)
    return modules


def packages() -> list[str]:
    pages = (*SOURCE.glob("*/__init__.py"), *SOURCE.glob("lab/*/__init__.py"))
    return sorted({path.parent.relative_to(SOURCE).as_posix() for path in pages} - {"lab"})


def package_of(module: str) -> str:
    """`lab/load` for `slacktide.lab.load.spec`, `engine` for `slacktide.engine.pool`."""
    _, *parts = module.split(".")
    return "/".join(parts[: 2 if parts[0] == "lab" else 1])


def files_of(package: str) -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py"))


def test_every_package_has_its_layer():
    assert sorted(package for layer in LAYERS for package in layer) == packages()


@pytest.mark.parametrize("package", packages())
def test_imports_point_downwards(package):
    level = next(i for i, layer in enumerate(LAYERS) if package in layer)
    below = {name for layer in LAYERS[:level] for name in layer} | {package}
    below |= {"_datatypes", "_faces", "_version"}
    below |= set() if package in PURE else {"_extensions", "_files"}
    below |= {"ray"} if package == "cli" else set()
    for path in files_of(package):
        named = {package_of(name) for name in imports_of(path) if name.startswith("slacktide.")}
        assert named <= below, f"{path.relative_to(SOURCE)} imports {sorted(named - below)}"


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_do_no_io(package):
    for path in files_of(package):
        tops = {name.split(".")[0] for name in imports_of(path)}
        assert not tops & IMPURE_MODULES, f"{path.relative_to(SOURCE)}: {tops & IMPURE_MODULES}"


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_leave_no_sums_to_kernels_that_processors_choose(package):
    """What is recorded on one machine replays to the bit on another (decision 0016)."""
    for path in files_of(package):
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Attribute) and node.attr in BLAS
            if called or isinstance(node, ast.MatMult):
                pytest.fail(f"{path.relative_to(SOURCE)}: a product of matrices")


def test_no_file_imports_a_serialiser_that_runs_code():
    for path in SOURCE.rglob("*.py"):
        tops = {name.split(".")[0] for name in imports_of(path)}
        assert not tops & UNSAFE, f"{path.relative_to(SOURCE)}: {tops & UNSAFE}"


@pytest.mark.parametrize("package", packages())
def test_every_package_has_a_short_page(package):
    lines = (SOURCE / package / "README.md").read_text().splitlines()
    assert 4 <= len(lines) <= 40


PAPERS = SOURCE.parent.parent / "papers" / "src" / "slacktide_papers"
LAB_INSIDE = 97
"""Names that lab takes from inside packages of the server. It may only fall."""
CLIENT_LEAVES = {
    "slacktide._datatypes",
    "slacktide.executors.pictures",
    "slacktide.wire.link_estimate",
    "slacktide.wire.proto.messages",
}
"""Modules that the client library takes along: they import nothing else of ours."""


def names_from_inside(folder: Path, own: str) -> set[tuple[str, str]]:
    """Names that the files of `folder` import from modules of `slacktide`, where the package of the
    module could offer them. Imports of `own` do not count."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module is None or not module.startswith("slacktide.") or module.startswith(own):
                continue
            place = SOURCE.joinpath(*module.split(".")[1:])
            if not place.is_dir():
                names |= {(module, alias.name) for alias in node.names}
    return names


def test_papers_import_what_packages_offer():
    assert names_from_inside(PAPERS, "slacktide_papers") == set()


def test_lab_imports_ever_fewer_names_from_inside_packages():
    assert len(names_from_inside(SOURCE / "lab", "slacktide.lab")) <= LAB_INSIDE


def imported_modules(path: Path) -> set[str]:
    """Modules of ours that a file imports anywhere."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slacktide"):
            place = SOURCE.joinpath(*(node.module or "").split(".")[1:])
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= names if place.is_dir() else {node.module or ""}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.startswith("slacktide")}
    return modules


def test_the_client_imports_a_few_modules_that_import_nothing_of_ours():
    used = set()
    for path in files_of("client"):
        used |= {name for name in imported_modules(path) if "slacktide.client" not in name}
    assert used == CLIENT_LEAVES
    for leaf in CLIENT_LEAVES:
        path = SOURCE.joinpath(*leaf.split(".")[1:]).with_suffix(".py")
        assert imported_modules(path) == set(), leaf


def test_importing_the_client_loads_nothing_else():
    """Neither in its own package nor by way of those that the leaves lie in."""
    code = "import json, sys, slacktide.client; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stdout))
    ours = {name for name in modules if name.partition(".")[0] == "slacktide"}
    packages = {".".join(leaf.split(".")[:-1]) for leaf in CLIENT_LEAVES}
    allowed = CLIENT_LEAVES | packages | {"slacktide._faces", "slacktide._version"}
    assert {name for name in ours if "slacktide.client" not in name} <= allowed
    heavy = {"cv2", "google", "grpc", "onnx", "onnxruntime", "pydantic", "typer", "uvloop", "yaml"}
    assert modules & heavy == set()


def test_one_file_imports_ray_and_only_the_command_line_imports_that():
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(name.split(".")[0] == "ray" for name in imports_of(path))
    }
    assert users == {"ray.py"}
    importers = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(name.startswith("slacktide.ray") for name in imports_of(path))
    ]
    assert importers == ["cli/cluster.py"]
    ours = {name for name in imports_of(SOURCE / "ray.py") if name.startswith("slacktide")}
    assert {package_of(name) for name in ours} == {"_datatypes", "cluster"}


def test_the_server_knows_neither_lab_nor_testing_nor_papers():
    """The command line names their verbs as strings."""
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] not in ("lab", "testing"):
            inside = {
                name
                for name in imports_of(path)
                if name.startswith(("slacktide.lab", "slacktide.testing", "slacktide_papers"))
            }
            assert not inside, f"{path.relative_to(SOURCE)}: {inside}"


def test_nothing_outside_the_engine_reads_its_state():
    """A snapshot is what there is to read (engine/snapshot.py)."""
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "engine"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "state":
                of = node.value.attr if isinstance(node.value, ast.Attribute) else node.value
                of = of.id if isinstance(of, ast.Name) else of
                assert of not in ("engine", "_engine"), f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_only_models_tell_pipelines_from_models():
    """Others ask a version for what differs: its route, its platform, its stages."""
    kinds = {
        node.name
        for path in (SOURCE / "models").glob("pipeline*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert {"PipelineVersion", "LoadedPipeline"} <= kinds
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "models"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name("isinstance"), args=[_, tested]):
                    pass
                case ast.MatchClass(cls=tested):
                    pass
                case _:
                    continue
            names = {name.id for name in ast.walk(tested) if isinstance(name, ast.Name)}
            assert not names & kinds, f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_grpcio_is_for_clients_alone():
    """It is an extra (docs/decisions/0004-grpc-stack.md)."""
    users = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(name.split(".")[0] == "grpc" for name in imports_of(path))
    }
    assert users == {
        "client/aio.py",
        "client/forks.py",
        "client/transport.py",
        "lab/load/discover.py",
        "lab/load/grpc_sender.py",
    }


@pytest.mark.parametrize("folder", [SOURCE, PAPERS], ids=lambda folder: folder.name)
def test_a_public_class_name_has_one_meaning_in_a_distribution(folder):
    where: dict[str, list[str]] = {}
    for path in folder.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(path.relative_to(folder).as_posix())
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


FRAGMENTS = {
    "__main__.py": "what `python -m slacktide` runs",
}
"""Files of fewer than 40 lines with one importer or none, each with its reason."""


def test_no_file_is_a_fragment():
    importers: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        importers.update(imports_of(path))
    small = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < 40
    }

    def module(name: str) -> str:
        return "slacktide." + name.removesuffix(".py").replace("/", ".")

    assert {name for name in small if importers[module(name)] < 2} == set(FRAGMENTS)


def test_the_table_of_contributing_names_what_is_there():
    page = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text()
    _, heading, rest = page.partition("### Where new things go\n")
    assert heading
    rows = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| a")]
    assert len(rows) >= 4
    for row in rows:
        _, _, *cells = row.strip("|").split("|")
        for cell in cells:
            paths = re.findall(r"\]\(([^)]+)\)", cell)
            assert paths, f"no link in {cell!r}"
            assert all((SOURCE.parent.parent / path).exists() for path in paths), paths


@pytest.mark.parametrize(
    "page", sorted(SOURCE.rglob("README.md")), ids=lambda page: page.parent.name
)
def test_a_page_of_a_package_names_files_that_are_there(page):
    for name in re.findall(r"`([a-z_/]+\.py)`", page.read_text()):
        places = (
            page.parent / name,
            SOURCE / name,
            SOURCE / "lab" / name,
            *page.parent.rglob(name),
        )
        assert any(place.exists() for place in places), f"{page.relative_to(SOURCE)}: {name}"


def test_only_their_process_imports_tokenizers():
    modules = {
        path.name: {module.partition(".")[0] for module in imports_of(path)}
        for path in SOURCE.rglob("*.py")
    }
    assert [name for name, used in modules.items() if "tokenizers" in used] == [
        "tokenizer_process.py"
    ]
