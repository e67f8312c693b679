"""Sites where the library can be made wrong: what `tests/mutate.py` draws from.

A mutant is one comparison, operator, constant, condition or result changed, or one statement gone; a
guard is an `if` that only raises, or a bare call of a check. Docstrings, annotations, `repr`, error
texts and what is logged stay.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

SWAPPED: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitXor: (ast.BitOr,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
CHECK = re.compile(r"_?(check|verify|need|fits?$|claim|same_|enough|known|raise_)")
TALK = re.compile(r"log|_?warn|print|echo|say_|note|debug|info|error|add_(row|column|section)")


@dataclass(frozen=True, slots=True)
class Site:
    """One change: bytes `start` to `end` of `file` become `text`."""

    file: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """The lines that it touches, without and with it, on one line."""
        head, tail = source.rfind(b"\n", 0, self.start) + 1, source.find(b"\n", self.end)
        new = source[head : self.start] + self.text.encode() + source[self.end : tail]
        return " -> ".join(" ".join(text.decode().split()) for text in (source[head:tail], new))


def _called(node: ast.AST) -> str:
    """Name of what an expression statement calls; "" if it is none."""
    call = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(call, ast.Call):
        return ""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Below `node`, without docstrings, annotations, decorators, error texts and what is logged."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if getattr(node, "name", "") in {"__repr__", "__str__", "__rich__"} or TALK.match(
        _called(node)
    ):
        return
    if isinstance(node, ast.keyword) and node.arg in {"repr", "strict"}:
        return
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns", "decorator_list", "bases"}:
            parts = value if isinstance(value, list) else [value]
            yield from (part for part in parts if isinstance(part, ast.AST))


def _swaps(node: ast.AST) -> Iterator[str]:
    """What an expression may become."""
    match node:
        case ast.Compare(left, ops, right):
            for at, op in enumerate(ops):
                for swapped in SWAPPED[type(op)]:
                    changed = [*ops[:at], swapped(), *ops[at + 1 :]]
                    yield ast.unparse(ast.Compare(left, changed, right))
        case ast.BinOp(left, op, right) if type(op) in SWAPPED:
            if not isinstance(getattr(left, "value", 0), str | bytes):
                yield ast.unparse(ast.BinOp(left, SWAPPED[type(op)][0](), right))
        case ast.BoolOp(op, values):
            yield ast.unparse(ast.BoolOp(SWAPPED[type(op)][0](), values))
        case ast.UnaryOp(ast.Not(), operand):
            yield ast.unparse(operand)
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() as value):
            yield str(value + 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Compare | ast.UnaryOp):
                yield f"not ({ast.unparse(test)})"


def _mutants(node: ast.AST, returns: str) -> Iterator[tuple[ast.AST, str]]:
    """What is replaced at a node, and by what."""
    target = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node
    yield from ((target, f"({text})") for text in _swaps(node))
    match node:
        case ast.Return(ast.AST() as value) if not isinstance(value, ast.Constant):
            forms = {"bool": "not ({})", "int": "({}) + 1"}
            yield value, forms.get(returns, "None").format(ast.unparse(value))
        case ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Expr(ast.Call()) if not TALK.match(_called(node)) and not CHECK.match(
            _called(node)
        ):
            yield node, "pass"


def _guards(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The same, for what only raises."""
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
        yield node.test, "False"
    elif isinstance(node, ast.Expr) and CHECK.match(_called(node)):
        yield node, "pass"


def sites(kind: str, file: str, source: bytes) -> list[Site]:
    starts = [0, *(end.end() for end in re.finditer(b"\n", source))]
    found = []

    def visit(node: ast.AST, returns: str | None) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        for at, text in _guards(node) if kind == "guards" else _mutants(node, returns or ""):
            start = starts[at.lineno - 1] + at.col_offset
            end = starts[at.end_lineno - 1] + at.end_col_offset
            found.append(Site(file, at.lineno, start, end, text))
        for child in _children(node):
            inside = isinstance(node, ast.FunctionDef) and isinstance(child, ast.stmt)
            visit(child, ast.unparse(node.returns or ast.Tuple([])) if inside else returns)

    visit(ast.parse(source), None)
    return found
