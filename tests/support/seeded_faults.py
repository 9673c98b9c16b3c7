"""Seeded faults: small changes of the package that its tests must find.

| kind | code | with the fault |
|---|---|---|
| comparison | ``a < b`` | ``a > b`` |
| constant | ``sizes[0]`` | ``sizes[1]`` |
| call | ``check(graph)`` | ``pass`` |
| condition | ``if is_shared:`` | ``if not is_shared:`` |
| operands | ``high - low`` | ``low - high`` |

Only code of functions is changed. Larger constants are limits and defaults, where a difference of 1 is not a fault.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random

KINDS = ("comparison", "constant", "call", "condition", "operands")
MAX_CONSTANT = 16
# Comparisons and their opposites.
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
}
COMPARISONS |= {opposite: comparison for comparison, opposite in COMPARISONS.items()}
# Operators whose result depends on the order of the operands.
ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult, ast.LShift, ast.RShift)
_SKIPPED_FIELDS = {"annotation", "returns", "type_params"}


@dataclass(frozen=True)
class Fault:
    """Change of one expression or statement of a module.

    Attributes:
        path: file of the module.
        function: name of the innermost function with the fault.
        line: line number.
        kind: one of `KINDS`.
        start, end: offsets of the code in the bytes of the file.
        before, after: the code, and the code that replaces it.
    """

    path: Path
    function: str
    line: int
    kind: str
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        """Return the source of the module with the fault."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def find_faults(path: Path) -> list[Fault]:
    """Return all possible faults of a module, in the order of its code."""
    source = path.read_bytes()
    lines = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    faults = []
    for function, node, kind, after in _changes(ast.parse(source), ""):
        start, end = (lines[line - 1] + column for line, column in _span(node))
        faults.append(Fault(path, function, node.lineno, kind, start, end, source[start:end].decode(), after))
    return faults


def choose_faults(paths: Sequence[Path], count: int, seed: int) -> list[Fault]:
    """Choose faults of all kinds in turn, each at random among all code of the modules.

    Args:
        paths: modules; their order is part of the choice.
        count: number of faults.
        seed: seed of the choice.
    """
    random = Random(seed)
    faults: dict[str, list[Fault]] = {kind: [] for kind in KINDS}
    for path in paths:
        for fault in find_faults(path):
            faults[fault.kind].append(fault)
    result = []
    for number in range(count):
        candidates = faults[KINDS[number % len(KINDS)]]
        result.append(candidates.pop(random.randrange(len(candidates))))
    return result


def _span(node: ast.expr | ast.stmt) -> tuple[tuple[int, int], tuple[int, int]]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _changes(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr | ast.stmt, str, str]]:
    """Yield the function, the node, the kind and the new code of each possible fault."""
    if function:
        for changed, kind, after in _changes_of(node):
            yield function, changed, kind, after
    if isinstance(node, ast.FunctionDef):
        function = node.name
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            # Tests do not fix the wording of texts.
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr) and name not in _SKIPPED_FIELDS:
                yield from _changes(child, function)


def _changes_of(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISONS:
            yield node, "comparison", f"({ast.unparse(ast.Compare(left, [COMPARISONS[type(operator)]()], [right]))})"
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and value <= MAX_CONSTANT:
            yield node, "constant", str(value + 1)
        case ast.Expr(value=ast.Call()):
            yield node, "call", "pass"
        case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, ORDERED):
            yield node, "operands", f"({ast.unparse(ast.BinOp(right, operator, left))})"
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test, "condition", f"(not ({ast.unparse(test)}))"
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield test, "condition", f"(not ({ast.unparse(test)}))"
