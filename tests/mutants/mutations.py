"""Mutations: small changes of a source that a test should notice, found with ast and written into the text.

Left out is what no test should hold: imports, annotations, decorators, errors' texts, f-strings, and the functions that
describe something. Assertions are left out too: they state what our own code guarantees, and a weaker one never fails.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_OTHER_COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OTHER_OPERATOR: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_LEFT_OUT = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert, ast.JoinedStr)
_LEFT_OUT_FIELDS = ("annotation", "returns", "decorator_list", "bases")
_DESCRIBING = ("__repr__", "__str__", "describe", "_describe")


@dataclass(frozen=True)
class Mutation:
    """One change of one source file."""

    file: str
    """The path, from the repository on."""

    line: int
    function: str
    """Where it stands, such as `ClientQueues.on_push`; empty at the top of the file."""

    kind: str
    change: str
    """The code before and after it; of several that are alike in a function, the second ends with `(2)`."""

    begin: int
    """Its first byte in the source; `end` is the first behind it."""

    end: int
    code: str
    """What stands there afterwards."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Which mutation it is, wherever its lines have moved to."""
        return self.file, self.function, self.change

    def applied(self, source: str) -> str:
        """The source with this change; all other lines stay as they are."""
        data = source.encode()
        return (data[: self.begin] + self.code.encode() + data[self.end :]).decode()


def mutations(file: str, source: str) -> list[Mutation]:
    """All mutations of a source, in the order of its lines."""
    starts = [0]
    for text in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    found: list[Mutation] = []
    alike: Counter[tuple[str, str, str]] = Counter()
    for node, function in _seen(ast.parse(source), ""):
        for kind, place, code in _changes(node):
            assert place.end_lineno is not None
            assert place.end_col_offset is not None
            begin = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            change = f"{_said(node, place)} -> {code}"
            mutation = Mutation(file, place.lineno, function, kind, change, begin, end, code)
            alike[mutation.key] += 1
            if (number := alike[mutation.key]) > 1:
                mutation = replace(mutation, change=f"{change} ({number})")
            found.append(mutation)
    return sorted(found, key=lambda mutation: (mutation.begin, mutation.end))


def chosen(candidates: Iterable[Mutation], number: int, seed: int) -> list[Mutation]:
    """That many of them, the kinds in turn, in the order of files and lines.

    Each has a place in the draw by its own key and the seed, so that a change of the code elsewhere leaves it there.
    """
    of_kind: Counter[str] = Counter()
    drawn = []
    for mutation in sorted(candidates, key=lambda mutation: _draw(mutation, seed)):
        of_kind[mutation.kind] += 1
        drawn.append((of_kind[mutation.kind], _draw(mutation, seed), mutation))
    taken = [mutation for _, _, mutation in sorted(drawn, key=lambda entry: entry[:2])[:number]]
    return sorted(taken, key=lambda mutation: (mutation.file, mutation.begin, mutation.end))


def _draw(mutation: Mutation, seed: int) -> bytes:
    return hashlib.sha256(repr((seed, mutation.key)).encode()).digest()


def _seen(node: ast.AST, function: str) -> Iterator[tuple[ast.AST, str]]:
    """The nodes that may change, each with the name of the function or class around it."""
    if isinstance(node, _LEFT_OUT) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        return
    yield node, function
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if node.name in _DESCRIBING:
            return
        function = f"{function}.{node.name}".removeprefix(".")
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in _LEFT_OUT_FIELDS:
                yield from _seen(child, function)


def _said(node: ast.AST, place: ast.AST) -> str:
    """The code before the change, in one line; of a condition or a result with the word in front of it."""
    word = {ast.If: "if ", ast.IfExp: "if ", ast.Return: "return "}.get(type(node), "")
    return word + " ".join(ast.unparse(place).split())


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """What may become of a node: the kind of change, the node that is replaced, and the code in its stead."""
    match node:
        case ast.Compare(left, ops, comparators):
            for number, op in enumerate(ops):
                others = [*ops[:number], _OTHER_COMPARISON[type(op)](), *ops[number + 1 :]]
                yield "comparison", node, _code(ast.Compare(left, others, comparators))
        case ast.BinOp(left, op, right) if type(op) in _OTHER_OPERATOR and not (_is_text(left) or _is_text(right)):
            yield "operator", node, _code(ast.BinOp(left, _OTHER_OPERATOR[type(op)](), right))
        case ast.AugAssign(target, op, value) if type(op) in _OTHER_OPERATOR and not _is_text(value):
            yield "augmented", node, ast.unparse(ast.AugAssign(target, _OTHER_OPERATOR[type(op)](), value))
        case ast.Constant(value) if type(value) is int:
            yield "constant", node, str(value + 1)
        case ast.BoolOp(op, values):
            yield "and or", node, _code(ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values))
        case ast.UnaryOp(ast.Not(), operand):
            yield "not", node, _code(operand)
        case ast.If(test) | ast.IfExp(test):
            yield "condition", test, "True"
            yield "condition", test, "False"
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "result", value, "None"
        case ast.Expr(ast.Call()):
            yield "statement", node, "pass"


def _code(expression: ast.expr) -> str:
    return f"({ast.unparse(expression)})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
