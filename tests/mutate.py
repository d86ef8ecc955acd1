"""Small mistakes made on purpose, and whether a test sees each: a sample of what the tests would
not notice.

    python tests/mutate.py 40               # 40 mutations: caught, survived or undecided, by part
    python tests/mutate.py 40 --list        # which they are, without a test
    python tests/mutate.py --show 7         # the seventh as a diff
    python tests/mutate.py 40 --covered-by tests/planner/test_search.py tests/planner/test_multi.py

Mistakes are made in functions (the figures of a table are facts) of a copy of the last commit, one
at a time; all tests of every run follow there with -x, the nearest first, for at most --limit
seconds: those of the module and its part, of the parts that import it, then the others. One that is
out of time is undecided. A test that fails without the mistake too has caught nothing. The same
seed makes the same mistakes of the same commit.

--covered-by makes mistakes only in lines that these tests run (covered.py), and tries of them those
that run the mistake's function, the quickest first.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from floors import LEVEL, PACKAGE, imports

ROOT = Path(__file__).parents[1]
PAIRS = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
)
OPPOSITE = {**dict(PAIRS), **{b: a for a, b in PAIRS}}


class Covered:
    """What some test files run, by one run of them."""

    def __init__(self, found: dict[str, dict[str, Any]]) -> None:
        self.lines: dict[str, set[int]] = {}
        self.functions: dict[str, list[tuple[int, set[int]]]] = {}  # by first line
        for name, lines in found["functions"].items():
            path, _, first = name.rpartition(":")
            self.lines.setdefault(path, set()).update(lines)
            self.functions.setdefault(path, []).append((int(first), set(lines)))
        self.tests = found["tests"]

    def of(self, mutation: Mutation) -> list[str]:
        """The tests that run the innermost function with this line, the quickest first."""
        path = mutation.path
        here = [first for first, lines in self.functions.get(path, ()) if mutation.line in lines]
        name = f"{path}:{max(here, default=0)}"
        running = [test for test, row in self.tests.items() if name in row["functions"]]
        return sorted(running, key=lambda test: float(self.tests[test]["seconds"]))

    def has(self, mutation: Mutation) -> bool:
        return mutation.line in self.lines.get(mutation.path, ())


class Mutation(NamedTuple):
    path: str  # below the root
    line: int
    kind: str
    before: str
    after: str
    start: int  # in the file's bytes
    end: int

    @property
    def part(self) -> str:
        return Path(self.path).parts[1].removesuffix(".py")

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}  {self.kind}: {_short(self.before)} -> {_short(self.after)}"
        )

    def of(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- the mistakes


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(kind, what stands there instead) of each mistake that can be made at a node."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "constant + 1", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield (
            "comparison",
            ast.Compare(node.left, [OPPOSITE[type(node.ops[0])]()], node.comparators),
        )
    elif isinstance(node, ast.BoolOp):
        yield "and/or", ast.BoolOp(OPPOSITE[type(node.op)](), node.values)
        for i in range(len(node.values)):
            rest = node.values[:i] + node.values[i + 1 :]
            yield "term dropped", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        yield "term dropped", node.left
        if isinstance(node.op, ast.Add):
            yield "term dropped", node.right
    elif isinstance(node, ast.IfExp):
        yield "branches swapped", ast.IfExp(node.test, node.orelse, node.body)


def negated(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.AST]]:
    if isinstance(node, (ast.If, ast.While)) and not isinstance(node.test, ast.Constant):
        yield "if negated", node.test, ast.UnaryOp(ast.Not(), node.test)


def mutations(root: Path, path: Path) -> Iterator[Mutation]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _code(ast.parse(source)):
        for kind, place, new in (
            *((kind, node, new) for kind, new in changes(node)),
            *negated(node),
        ):
            start = starts[place.lineno - 1] + place.col_offset  # type: ignore[attr-defined]
            end = starts[place.end_lineno - 1] + place.end_col_offset  # type: ignore[attr-defined]
            text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(new)))
            if not isinstance(new, (ast.Constant, ast.Name)):
                text = f"({text})"
            yield Mutation(
                path.relative_to(root).as_posix(),
                place.lineno,  # type: ignore[attr-defined]
                kind,
                source[start:end].decode(),
                text,
                start,
                end,
            )


def _code(tree: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """The nodes of functions' bodies, without annotations and f-strings, of which older Pythons
    know no place."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                here = inside or isinstance(tree, (ast.FunctionDef, ast.Lambda))
                if here and hasattr(child, "lineno"):
                    yield child
                yield from _code(child, here)


def sample(
    root: Path, count: int, seed: int, parts: list[str], covered: Covered | None = None
) -> list[Mutation]:
    """As many of each kind as of the others, each anywhere in the parts, in lines that are
    covered."""
    every: dict[str, list[Mutation]] = {}
    for path in sorted((root / "autolayers").rglob("*.py")):
        for found in mutations(root, path):
            wanted = not parts or any(found.path.startswith(f"autolayers/{part}") for part in parts)
            if wanted and (covered is None or covered.has(found)):
                every.setdefault(found.kind, []).append(found)
    dice = random.Random(seed)
    return [dice.choice(every[dice.choice(sorted(every))]) for _ in range(count)]


# --- what the tests say


def tests(root: Path, mutation: Mutation) -> list[str]:
    """All of them: the module's own file first, then its part's folder, those of parts that import
    it, and the rest."""
    folder, name = Path(mutation.path).parts[1:-1], Path(mutation.path).stem
    own = [
        Path("tests", *folder[:n], f"test_{stem}.py")
        for n in range(len(folder), -1, -1)
        for stem in (name, *folder)
    ]
    near = [Path("tests", part) for part in nearest(mutation.part)]
    if "planner" in nearest(mutation.part):
        near[1:1] = [Path("tests/decisions/test_bars.py")]
    if "memory" in nearest(mutation.part):
        near[1:1] = [Path("tests/truth")]
    files = sorted(path.relative_to(root) for path in (root / "tests").rglob("test_*.py"))
    folders = [Path(*path.parts[:2]) for path in files]
    return list(
        dict.fromkeys(
            place.as_posix() for place in (*own, *near, *folders) if (root / place).exists()
        )
    )


def nearest(part: str) -> list[str]:
    """The part, then those that import it, then those that import these, from the ground up."""
    found = [part]
    for near in found:
        found += sorted(importers()[near] - {*found}, key=LEVEL.__getitem__)
    return found


@cache
def importers() -> dict[str, set[str]]:
    """For each part of the package those that import it."""
    found: dict[str, set[str]] = {part: set() for part in LEVEL}
    for path in sorted(PACKAGE.rglob("*.py")):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for part, _ in imports(path):
            if here in LEVEL and part in LEVEL:
                found[part].add(here)
    return found


class Copy:
    """A work tree of the last commit: mistakes are made there, and tests run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", root, "HEAD"], cwd=ROOT, check=True
        )
        self.environ = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}

    def remove(self) -> None:
        subprocess.run(["git", "worktree", "remove", "--force", self.root], cwd=ROOT, check=True)

    def write(self, path: str, source: bytes) -> None:
        """And forgets what was compiled, which is told apart by its size and second alone."""
        (self.root / path).write_bytes(source)
        Path(importlib.util.cache_from_source(str(self.root / path))).unlink(missing_ok=True)

    def test(self, words: list[str], limit: float | None) -> tuple[int | None, str]:
        """(exit code, output) of pytest; no code where its time ran out."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-n0",
            "-p",
            "no:cacheprovider",
            "--tb=no",
            "-rfE",
            *words,
        ]
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child:
            try:
                out, _ = child.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                return None, ""
        return child.returncode, out

    def covered(self, files: list[str]) -> Covered:
        """What these test files run."""
        place = self.root / "covered.json"
        self.environ["AUTOLAYERS_COVERED"] = str(place)
        code, out = self.test(["-p", "covered", *files], None)
        del self.environ["AUTOLAYERS_COVERED"]
        if code:
            raise SystemExit(f"these tests fail without a mistake:\n{out}")
        return Covered(json.loads(place.read_text(encoding="utf-8")))

    def tried(
        self, mutation: Mutation, limit: float, covered: Covered | None = None
    ) -> tuple[str, str]:
        """(caught, survived or undecided, which test failed)."""
        nearest_first = tests(self.root, mutation) if covered is None else covered.of(mutation)
        whole = (self.root / mutation.path).read_bytes()
        self.write(mutation.path, mutation.of(whole))
        try:
            code, out = self.test(nearest_first, limit)
        finally:
            self.write(mutation.path, whole)
        if not code:
            return ("undecided" if code is None else "survived"), ""
        failed = next(
            (
                line.split(" ", 1)[1].partition(" - ")[0]
                for line in out.splitlines()
                if line.startswith(("FAILED ", "ERROR "))
            ),
            "",
        )
        if failed and self.test([failed], limit)[0]:
            return "undecided", f"{failed} fails without it too"
        return "caught", failed


def run(
    copies: list[Copy], chosen: list[Mutation], limit: float, covered: Covered | None = None
) -> int:
    """Tries all of them, and prints each and the table; the exit code."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for each in copies:
        free.put(each)

    def tried(mutation: Mutation) -> tuple[str, str]:
        place = free.get()
        try:
            return place.tried(mutation, limit, covered)
        finally:
            free.put(place)

    counts: Counter[tuple[str, str]] = Counter()
    kinds: Counter[str] = Counter()  # of mistakes that survived
    with ThreadPoolExecutor(len(copies)) as pool:
        for number, (mutation, (state, test)) in enumerate(
            zip(chosen, pool.map(tried, chosen), strict=True), 1
        ):
            print(
                f"{number:4} {state:9} {mutation}" + (f"\n{'':15}{test}" if test else ""),
                flush=True,
            )
            kinds[mutation.kind] += state == "survived"
            for part in (mutation.part, "all"):
                counts[part, state] += 1
    parts = sorted({part for part, _ in counts} - {"all"})
    print(f"\n{'':12}{''.join(f'{state:>11}' for state in STATES)}")
    for part in (*parts, "all"):
        print(f"{part:12}{''.join(f'{counts[part, state]:11}' for state in STATES)}")
    print("\n".join(f"survived: {count} of {kind}" for kind, count in kinds.most_common() if count))
    caught = counts["all", "caught"]
    decided = caught + counts["all", "survived"]
    print(f"{caught} of {decided} decided were caught ({100 * caught / max(decided, 1):.0f} %)")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int, nargs="?", default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        help="of this part of the package alone, such as memory or planner/several",
    )
    parser.add_argument("--limit", type=float, default=900, help="seconds for the tests of each")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--covered-by", nargs="+", metavar="FILE", default=[])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--show", type=int, metavar="N")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the copies are removed then too
    with tempfile.TemporaryDirectory() as folder:
        copies: list[Copy] = []
        try:
            for number in range(1 if given.list or given.show else given.jobs):
                copies.append(Copy(Path(folder, str(number))))
            root = copies[0].root
            covered = copies[0].covered(given.covered_by) if given.covered_by else None
            count = max(given.count, given.show or 0)
            chosen = sample(root, count, given.seed, given.part, covered)
            if given.show:
                mutation = chosen[given.show - 1]
                whole = (root / mutation.path).read_bytes()
                before, after = (
                    text.decode().splitlines(keepends=True) for text in (whole, mutation.of(whole))
                )
                diff = difflib.unified_diff(
                    before, after, f"a/{mutation.path}", f"b/{mutation.path}"
                )
                print(f"{mutation}\n{' '.join(tests(root, mutation))}\n{''.join(diff)}", end="")
            elif given.list:
                print(
                    "\n".join(f"{number:4} {mutation}" for number, mutation in enumerate(chosen, 1))
                )
            else:
                return run(copies, chosen, given.limit, covered)
        finally:
            for each in copies:
                each.remove()
    return 0


STATES = ("caught", "survived", "undecided")

if __name__ == "__main__":
    sys.exit(main())
