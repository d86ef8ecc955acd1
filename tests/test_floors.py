"""Anyone who changes one part would have to understand those above it.

The floors of the package: a module imports from its own floor or from those below it, whenever
the import runs; and its functions are short.
"""

from __future__ import annotations

from pathlib import Path

from floors import LEVEL, PACKAGE, imports, parsed, part_of


def test_every_part_has_a_floor() -> None:
    parts = {
        path.stem if path.is_file() else path.name
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path.is_dir() and (path / "__init__.py").exists())
    }
    assert parts - {"__init__", "__main__"} <= LEVEL.keys()


def upward(path: Path) -> list[str]:
    """The imports of a file that do not go down."""
    here = part_of(path.relative_to(PACKAGE).with_suffix("").parts)
    if here in ("__init__", "__main__"):
        return []
    return [
        f"{path}:{line}: {here} imports {part}"
        for part, line in imports(path)
        if part in LEVEL and part != here and LEVEL[part] >= LEVEL[here]
    ]


def test_imports_go_down() -> None:
    assert not [line for path in sorted(PACKAGE.rglob("*.py")) for line in upward(path)]


def modules_that(path: Path, all_of_them: dict[str, Path]) -> set[str]:
    """The modules of this package that a file of it imports, in functions and for type checkers
    too."""
    here = [*path.relative_to(PACKAGE).with_suffix("").parts][:-1]
    found = set()
    for node in parsed(path)[0]:
        base = [*here[: len(here) - (node.level - 1)], *(node.module or "").split(".")]
        of = ".".join(filter(None, base))
        names = {".".join(filter(None, (of, alias.name))) for alias in node.names}
        found |= {name if name in all_of_them else of for name in names}
    return found & all_of_them.keys()


def test_no_two_modules_import_each_other_in_a_circle() -> None:
    """Taking away, again and again, what imports nothing that is left leaves the circles, and what
    imports them."""
    paths = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    left = {name: modules_that(path, paths) - {name} for name, path in paths.items()}
    while done := {name for name, found in left.items() if not found & left.keys()}:
        left = {name: found for name, found in left.items() if name not in done}
    assert not left, {name: sorted(found & left.keys()) for name, found in left.items()}


LONGEST = 112
# Pass 5 of ggml_backend_sched_split_graph
MIRRORS = {("ggml/scheduler.py", "split")}


def test_functions_are_short_but_for_mirrors_of_llama_cpp() -> None:
    long = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in PACKAGE.rglob("*.py")
        for name, length in parsed(path)[1]
        if length > LONGEST
    }
    assert long == MIRRORS
