"""The build hook that compiles the packages named in pyproject.toml with mypyc, into a wheel for
one CPython and one platform. It is off by default; `make wheels` turns it on:

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 python -m build --wheel

The sources stay as they are. A copy is compiled, in which three things are spelled out that mypyc
leaves to the interpreter or does otherwise:

- What `@dataclass` makes of a list of fields, its constructor, is written as a method, since
  mypyc calls a generated one through the interpreter: 690 ns instead of 80. `@read_only` is
  written as the dataclass that it is.
- `sum` is given lists instead of generators, so that it adds as the interpreter does.
- Annotations of fields, of which mypyc keeps only plain classes, are kept as text, as
  `from __future__ import annotations` has them: options and recordings are read by them.

`python hatch_build.py FOLDER` builds into FOLDER, whose part `package` can stand on PYTHONPATH.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program, or by a test
    BuildHookInterface = object

SOURCES = Path("src")
FLAGS = ("-g0", "-ffp-contract=off")  # no fused multiply and add: results are the same to the bit
VERSION = "slacktide/_version.py"
READ_ONLY = {
    "slacktide.domain.read_only import": "dataclasses import dataclass as",
    "\n@read_only\n": "\n@read_only(slots=True, unsafe_hash=True)\n",
}


class CompiledWheel(BuildHookInterface):  # type: ignore[misc, valid-type]  # hatchling has no types here
    """Adds the compiled modules to a wheel, beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self.folder = tempfile.TemporaryDirectory(prefix="slacktide-")
        made = compiled(Path(self.root), Path(self.folder.name), self.config)
        build_data.update(pure_python=False, infer_tag=True)
        build_data["force_include"].update({str(file): name for name, file in made.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact: str) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def compiled(root: Path, folder: Path, config: Mapping[str, Any]) -> dict[str, Path]:
    """Compiles what `config` names, in `folder`. Returns files by their place in the wheel."""
    groups = {name: list(_modules(root / SOURCES, config, name)) for name in config["groups"]}
    chosen = {each for group in groups.values() for each in group}
    _copy(root / SOURCES, folder / "tree", chosen, config)
    here = Path.cwd()
    os.chdir(folder / "tree")
    try:
        return _built(folder, groups)
    finally:
        os.chdir(here)


def _modules(sources: Path, config: Mapping[str, Any], group: str) -> Iterator[str]:
    """The files of a group, as `slacktide/domain/request.py`."""
    left_out = tuple(config.get("interpreted", ()))
    for entry in config["groups"][group]:
        place = sources / entry
        found = [place] if place.suffix else sorted(place.rglob("*.py"))
        if not found:
            raise FileNotFoundError(f"pyproject.toml names {entry!r}, which has no modules")
        for path in found:
            name = path.relative_to(sources).as_posix()
            if path.name != "__init__.py" and not name.startswith(left_out):
                yield name


def _copy(sources: Path, tree: Path, chosen: set[str], config: Mapping[str, Any]) -> None:
    """The sources, those that are compiled spelled out. Unchanged files keep their times."""
    subclassed = [each.rpartition(".") for each in config.get("subclassed", ())]
    for path in sorted({*sources.rglob("*.py"), *sources.rglob("*.pyi")}):
        name = path.relative_to(sources).as_posix()
        text = "" if name == "slacktide/__init__.py" else path.read_text()
        if name in chosen:
            module = name.removesuffix(".py").replace("/", ".")
            text = spelled_out(
                text,
                [pattern for within, _, pattern in subclassed if within == module],
                copied=any(map(name.startswith, config.get("copied", ()))),
            )
        copy = tree / name
        if not copy.is_file() or copy.read_text() != text:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)


def _built(folder: Path, groups: Mapping[str, list[str]]) -> dict[str, Path]:
    # mypyc 2.4.1 fails on what it has itself cached of other groups.
    shutil.rmtree(folder / "cache", ignore_errors=True)
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.environ["CFLAGS"] = " ".join((os.environ.get("CFLAGS", ""), *FLAGS))
    config = folder / "mypy.ini"
    config.write_text(
        f"[mypy]\npython_version = {sys.version_info.major}.{sys.version_info.minor}\n"
        "ignore_missing_imports = true\nfollow_imports = silent\n"
    )
    extensions = mypycify(
        [
            f"--config-file={config}",
            f"--cache-dir={folder / 'cache'}",
            *(name for names in groups.values() for name in names),
        ],
        opt_level=os.environ.get("MYPYC_OPT_LEVEL", "1"),
        debug_level="0",
        separate=[(names, f"slacktide_{group}") for group, names in groups.items()],
        target_dir=str(folder / "c"),
    )
    command = Distribution({"name": "slacktide", "ext_modules": extensions}).get_command_obj(
        "build_ext"
    )
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.ensure_finalized()
    command.parallel = os.cpu_count()
    command.run()
    made = {Path(command.get_ext_filename(each.name)) for each in extensions}
    files = {name.as_posix(): folder / "lib" / name for name in sorted(made)}
    version = folder / "version.py"
    stated = (folder / "tree" / VERSION).read_text()
    version.write_text(
        stated.replace("COMPILED: tuple[str, ...] = ()", f"COMPILED = {tuple(files)!r}")
    )
    return {**files, VERSION: version}


def spelled_out(text: str, subclassed: Iterable[str] = (), *, copied: bool = False) -> str:
    """The text of a module with constructors of its dataclasses, and annotations kept.

    Every line keeps its number: tracebacks of compiled code show the lines of the source."""
    for short, written in READ_ONLY.items():
        text = text.replace(short, written)
    lines, kept, known = [*_with_lists(text).splitlines(), "", ""], [], {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            future = node.lineno
        if not isinstance(node, ast.ClassDef):
            continue
        decorator = _dataclass(node)
        opened = any(fnmatch(node.name, each) for each in subclassed)
        if (copied or opened) and not _plain(node):
            # The line before is empty, as the formatter has it. It also has copies not call the
            # constructor. (`serializable` is for that, but with it mypyc 2.4.1 never runs the
            # constructor for interpreted code.)
            lines[_first(node) - 2] = "@mypyc_attr(allow_interpreted_subclasses=True)"
            lines[future] = 'if __name__ == "": from mypy_extensions import mypyc_attr'
            # A copy of an interpreted subclass has what only that class knows, too.
            attributes = f'getattr({node.name}, "__mypyc_attrs__")'
            kept.append(f'setattr({node.name}, "__mypyc_attrs__", (*{attributes}, "__dict__"))')
        if decorator is None:
            continue
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        names = {each.target.id: ast.unparse(each.annotation) for each in fields}
        kept.append(f'setattr({node.name}, "__annotations__", {names!r})')
        if opened and "slots=True" in ast.unparse(decorator):
            # False, or mypyc refuses compiled classes that extend it; read by `@dataclass`.
            false = 'type("Slots", (tuple,), {"__bool__": staticmethod(bool)})'
            kept.append(f'setattr({node.name}, "__slots__", {false}({tuple(names)!r}))')
        if "frozen=True" in ast.unparse(decorator):  # the guard is not for copies, either
            kept += [f'delattr({node.name}, "__{a}attr__")' for a in ("set", "del")]
        bases = [ast.unparse(base) for base in node.bases]
        if not all(base in known for base in bases):
            continue  # its constructor sets fields that are stated elsewhere
        every = [*(each for base in bases for each in known[base]), *fields]
        if not _has(node, "__post_init__"):
            known[node.name] = every
        constructor = _constructor(node, every)
        if constructor is None:
            continue
        lines[node.end_lineno] = constructor
        if "eq=False, repr=False" in ast.unparse(decorator):
            # Nothing is left for `@dataclass` to do. It would look up types of fields, of which
            # one that only the type checker imports is not there yet: a crash.
            lines[decorator.lineno - 1] = ""
            for each in fields:
                rest = [""] * (each.end_lineno - each.lineno)
                stated = f"    {each.target.id}: {ast.unparse(each.annotation)}"
                lines[each.lineno - 1 : each.end_lineno] = [stated, *rest]
    return "\n".join([*lines, *(each + "  # type: ignore" for each in kept), ""])


def _with_lists(text: str) -> str:
    """`sum` over lists: over a generator mypyc adds by itself, and not floats to the first 0, nor
    with the compensation that CPython has from 3.12 on."""
    lines = [line.encode() for line in text.splitlines()]
    places = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sum":
            given = node.args[0]
            if isinstance(given, ast.GeneratorExp):
                places.append((given.lineno - 1, given.col_offset, b"(["))
                places.append((given.end_lineno - 1, given.end_col_offset - 1, b"])"))
    for line, column, new in sorted(places, reverse=True):
        lines[line] = lines[line][:column] + new + lines[line][column + 1 :]
    return b"\n".join(lines).decode()


def _plain(node: ast.ClassDef) -> bool:
    """Whether it is of a kind that mypyc leaves to the interpreter."""
    kinds = {"Enum", "StrEnum", "IntEnum", "NamedTuple", "Protocol", "Exception", "ValueError"}
    return any(ast.unparse(base).partition("[")[0] in kinds for base in node.bases)


def _first(node: ast.ClassDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _has(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(each, ast.FunctionDef) and each.name == name for each in node.body)


def _dataclass(node: ast.ClassDef) -> ast.expr | None:
    for each in node.decorator_list:
        called = each.func if isinstance(each, ast.Call) else each
        if isinstance(called, ast.Name) and called.id in ("dataclass", "read_only"):
            return each
    return None


def _constructor(node: ast.ClassDef, fields: list[ast.AnnAssign]) -> str | None:
    """The constructor that `@dataclass` would make; None where that is left to it."""
    if _has(node, "__init__") or not fields:
        return None
    taken, body = [], []
    for each in fields:
        name, kind, value = each.target.id, ast.unparse(each.annotation), each.value
        if kind.startswith("ClassVar"):
            return None
        stated, default = {}, None if value is None else ast.unparse(value)
        if default and default.startswith("field("):
            stated = {word.arg: ast.unparse(word.value) for word in value.keywords}
            default = stated.get("default")
        if stated.get("init") == "False":
            if default or "default_factory" in stated:
                body.append(f"self.{name} = {default or stated['default_factory'] + '()'}")
            continue
        if "default_factory" in stated:
            taken.append(f"{name}: {kind} | None = None")
            made = f"({stated['default_factory']})()"
            body.append(f"self.{name} = {made} if {name} is None else {name}")
            continue
        taken.append(f"{name}: {kind}" + (f" = {default}" if default is not None else ""))
        body.append(f"self.{name} = {name}")
    if _has(node, "__post_init__"):
        body.append("self.__post_init__()")
    star = "*, " if "kw_only=True" in ast.unparse(_dataclass(node)) else ""
    written = f"def __init__(self, {star}{', '.join(taken)}) -> None: {'; '.join(body)}"
    return f"    {written}  # type: ignore  # it may be frozen"


if __name__ == "__main__":
    import tomllib

    root = Path(__file__).parent
    project = tomllib.loads((root / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    folder = Path(sys.argv[1]).resolve()
    made = compiled(root, folder, hook)
    shutil.rmtree(folder / "package", ignore_errors=True)
    shutil.copytree(root / SOURCES, folder / "package")
    for name, file in made.items():
        shutil.copy(file, folder / "package" / name)
