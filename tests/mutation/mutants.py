"""Faults that can be put into a module, one at a time.

Each is a small change of the syntax tree: another comparison, another operator, a constant one
off, a condition that always or never holds, a statement left out. Left alone are annotations,
docstrings, texts (messages are not behaviour), log lines, assertions and everything under
`TYPE_CHECKING`. A fault has a name that survives unrelated edits: module, function, what stood
there and what stands there now, so that equivalent ones can be listed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_QUIET = {"log", "logger", "warnings"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the module's whole source with it, and what it is called."""

    path: str
    """Of the module, from the source folder: `engine/lanes.py`."""
    line: int
    function: str
    """Qualified name within the module."""
    before: str
    after: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.path} {self.function}: {self.before} -> {self.after}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Every fault of one module, in the order of its lines; two of one name count as one."""
    tree = ast.parse(source)
    mutants: dict[str, Mutant] = {}
    for function, holder, field, index, node in list(_places(tree, "")):
        for changed in _changes(node, statement=isinstance(node, ast.stmt)):
            parent = getattr(holder, field)
            if index is None:
                setattr(holder, field, changed)
            else:
                parent[index] = changed
            before, after = _text(node), _text(changed)
            mutated = Mutant(path, node.lineno, function, before, after, ast.unparse(tree))
            if index is None:
                setattr(holder, field, node)
            else:
                parent[index] = node
            if before != after:
                mutants.setdefault(mutated.name, mutated)
    return sorted(mutants.values(), key=lambda mutant: mutant.line)


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:160]


_Place = tuple[str, ast.AST, str, int | None, ast.expr | ast.stmt]


def _places(node: ast.AST, function: str) -> Iterator[_Place]:
    """(function, parent, field, index, child) of every expression and statement that may change."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            inside = function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = f"{function}.{child.name}" if function else child.name
            elif function and isinstance(child, ast.expr | ast.stmt):
                yield (function, node, field, index, child)
            yield from _places(child, inside)


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _QUIET
        case ast.FunctionDef(name=name):
            return name in ("__repr__", "__str__")
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _changes(node: ast.AST, *, statement: bool) -> Iterator[ast.AST]:
    if statement:
        yield from _changed_statement(node)
        return
    match node:
        case ast.Compare(ops=ops):
            for index, operator in enumerate(ops):
                if other := _COMPARISONS.get(type(operator)):
                    changed = copy.deepcopy(node)
                    changed.ops[index] = other()
                    yield changed
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.BinOp(left=left, op=operator, right=right):
            if other := _OPERATORS.get(type(operator)):
                yield ast.BinOp(left, other(), right)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield ast.Call(ast.Name(_CALLS[name], ast.Load()), node.args, node.keywords)
        case ast.IfExp(test=_, body=body, orelse=orelse):
            yield body
            yield orelse


def _changed_statement(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.If() | ast.While():
            for value in (True, False):
                if isinstance(node, ast.While) and value:
                    continue  # a loop without an end shows nothing but patience
                changed = copy.copy(node)
                changed.test = ast.Constant(value)
                yield changed
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
