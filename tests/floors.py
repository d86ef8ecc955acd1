"""The floors of the package, and what each file of it imports (test_floors.py, mutate.py)."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from support import ROOT

PACKAGE = ROOT / "autolayers"

# From the ground up. What stands in one row does not import each other.
FLOORS = (
    ("errors", "records", "garbage"),
    ("units", "quoting", "tables", "files"),
    ("programs", "state", "net", "ggml", "parallel", "machine", "keys"),
    ("gguf", "flags", "output"),
    ("engines", "store"),
    ("builds",),
    ("model",),
    ("backends", "bundled"),
    ("devices", "sources", "detect", "logs"),
    ("graph",),
    ("memory",),
    ("work", "request"),
    ("planner",),
    ("api",),
    ("diagnosis",),
    ("report", "launch", "ollama", "rules"),
    ("web",),
    ("cli",),
)
LEVEL = {part: level for level, parts in enumerate(FLOORS) for part in parts}
# A program's own memory model stands on the floor of llama.cpp's
ELSEWHERE = {("engines", "ik_llama", "memory"): "memory"}


def part_of(names: tuple[str, ...]) -> str:
    """The part to which a module belongs, by the names of its folders and its own."""
    return ELSEWHERE.get(names[:3], names[0])


@cache
def parsed(path: Path) -> tuple[list[ast.ImportFrom], set[tuple[str, int]]]:
    """A file's imports from this package, and its functions with their lengths."""
    found, functions = [], set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.add((node.name, (node.end_lineno or 0) - node.lineno + 1))
    return found, functions


def imports(path: Path) -> list[tuple[str, int]]:
    """(part, line) of every import of this package in a file, those inside functions and for type
    checkers included."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    package = here[:-1]
    found = []
    for node in parsed(path)[0]:
        base = package[: len(package) - (node.level - 1)]
        target = (*base, *(node.module or "").split(".")) if node.module else base
        names = [part_of(target)] if target and target[0] else [alias.name for alias in node.names]
        found += [
            (name, node.lineno)
            for name in names
            if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()
        ]
    return found
