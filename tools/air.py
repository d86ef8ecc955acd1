"""Measure how dense the code is: what a reader must take in at once.

    python tools/air.py                  # the figures of autolayers/
    python tools/air.py --list           # and each place above a limit
    python tools/air.py PATH ...         # of other code, to compare

Figures: expression nodes per line of function bodies, conditions of five or more operands, comments
per 100 lines of code, lines above 100 columns, and functions whose cyclomatic complexity is above
10 (1, and 1 for each branch, loop, handler, boolean operator, comprehension and condition in one).
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = 100
OPERANDS = 5
COMPLEXITY = 10
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.match_case,
)


@dataclass
class Air:
    """Counts over all files; `places`: (file, line, what) of each that is above a limit."""

    lines: int = 0
    code: int = 0
    comments: int = 0
    body_lines: int = 0
    nodes: int = 0
    functions: int = 0
    complex: int = 0
    operands: int = 0
    wide: int = 0
    places: list[tuple[Path, int, str]] = field(default_factory=list)

    def add(self, path: Path) -> None:
        """Count one file."""
        text = path.read_text(encoding="utf-8")
        self._add_lines(path, text)
        tree = ast.parse(text)
        self._add_conditions(path, tree)
        for node in ast.walk(tree):
            if isinstance(node, Function):
                self._add_function(path, node)

    def _add_lines(self, path: Path, text: str) -> None:
        lines = text.splitlines()
        self.lines += len(lines)
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS:
                self.wide += 1
                self.places.append((path, number, f"{len(line)} columns"))
        code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                self.comments += 1
            elif token.type not in (
                tokenize.NL,
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.DEDENT,
                tokenize.ENDMARKER,
            ):
                code.update(range(token.start[0], token.end[0] + 1))
        self.code += len(code)

    def _add_conditions(self, path: Path, tree: ast.Module) -> None:
        inner = {id(value) for node in ast.walk(tree) for value in _operands(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.BoolOp) and id(node) not in inner:
                count = _count(node)
                if count >= OPERANDS:
                    self.operands += 1
                    self.places.append((path, node.lineno, f"{count} operands"))

    def _add_function(self, path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        own = [child for statement in body for child in _own(statement)]
        rows = {
            row
            for child in own
            if isinstance(child, ast.expr)
            for row in range(child.lineno, (child.end_lineno or child.lineno) + 1)
        }
        self.nodes += sum(isinstance(child, ast.expr) for child in own)
        self.body_lines += len(rows)
        complexity = 1 + sum(map(_branches, own))
        self.functions += 1
        if complexity > COMPLEXITY:
            self.complex += 1
            self.places.append((path, node.lineno, f"{node.name}: complexity {complexity}"))

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield (what, figure)."""
        yield "lines", f"{self.lines:,}"
        yield (
            "expression nodes per line of a function's body",
            f"{self.nodes / max(1, self.body_lines):.2f}",
        )
        yield f"conditions of {OPERANDS} or more operands", str(self.operands)
        yield "comments per 100 lines of code", f"{100 * self.comments / max(1, self.code):.1f}"
        yield f"lines above {COLUMNS} columns", str(self.wide)
        share = 100 * self.complex / max(1, self.functions)
        yield (
            f"functions of complexity above {COMPLEXITY}",
            f"{self.complex} of {self.functions} ({share:.1f} %)",
        )


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those in it, without nested functions and classes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*Function, ast.ClassDef)):
            yield from _own(child)


def _branches(node: ast.AST) -> int:
    """Count the paths that a node adds."""
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, BRANCHES))


def _operands(node: ast.AST) -> list[ast.expr]:
    """Return the boolean expressions directly in one."""
    if not isinstance(node, ast.BoolOp):
        return []
    return [value.operand if isinstance(value, ast.UnaryOp) else value for value in node.values]


def _count(node: ast.expr) -> int:
    """Count the operands of a boolean expression, of those in it too."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _count(node.operand)
    return sum(map(_count, node.values)) if isinstance(node, ast.BoolOp) else 1


def measure(paths: Iterable[Path]) -> Air:
    """Measure Python files, and those of directories."""
    air = Air()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            air.add(file)
    return air


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[Path("autolayers")])
    parser.add_argument("--list", action="store_true", help="list each place above a limit")
    arguments = parser.parse_args()
    air = measure(arguments.paths)
    for what, figure in air.rows():
        print(f"{what:<50} {figure}")
    if arguments.list:
        for path, line, what in air.places:
            print(f"{path}:{line}: {what}")


if __name__ == "__main__":
    main()
