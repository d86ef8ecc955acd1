"""`autolayers check`: does the installed llama.cpp allocate as predicted?"""

from __future__ import annotations

import os
import shutil
import sys

from ..bundled import architectures
from ..detect import digest
from ..errors import AutolayersError, UsageError
from ..flags.check import read
from ..flags.params import Params
from ..launch import NOT_EXECUTABLE, NOT_FOUND
from ..launch.build_check import Checked, check, companions
from ..output import emit_json, say, show
from ..report.table import Style, table, wrap
from ..request import Request
from ..store import CheckedBuild, keep, now, of_path
from ..units import mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..builds import Build

_PROBLEMS = {"differs": "red", "failed": "red", "bound": "dim"}  # state -> colour of its lines


def main(words: Sequence[str]) -> int:
    """Print and keep the result of each architecture; 1 if any size differs or a load failed."""
    arguments = read("check", words)
    if arguments.positional:
        raise UsageError(f"check takes flags only, not {arguments.positional[0]!r}: see its --help")
    own = arguments.own
    named = own.get("llama-server", "llama-server")
    program = shutil.which(named)
    if program is None:
        # Say why a program does not start, and return its exit code
        # 126 and 127 as a shell returns them
        exists = os.path.exists(named)
        why = "cannot be executed" if exists else "no such program"
        say(f"{named}: {why}; give its path with --llama-server")
        return NOT_EXECUTABLE if exists else NOT_FOUND
    # The result is kept under this path, wherever the next plan is started
    program = os.path.abspath(program)
    # Without flags: the tiny models are launched with flags of their own
    request = Request.of(Params(), os.environ, program=[program])
    build = request.build
    # Its --help is not llama-server's: nothing is started with it
    if build.flags is None:
        raise AutolayersError(f"{program}: not llama-server, by its --help")
    results: list[Checked] = []
    # A result for each model, and one for each with its draft, adapter or projector
    count = len(architectures()) + len(companions())
    terminal = sys.stderr.isatty()
    # Each result is shown as it comes: somebody waits
    for checked in check(program, request.machine.devices, os.environ, build, quick="quick" in own):
        results.append(checked)
        # A line that is written over in place
        if terminal:
            print(
                f"\r{len(results)} of {count}: {checked.name:<40}",
                end="",
                file=sys.stderr,
                flush=True,
            )
    if terminal:
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    _keep(program, build, results)
    if own.get("json"):
        emit_json(_json(program, build, results))
    else:
        show(_text(program, build, results))
    return 1 if any(result.state in ("differs", "failed") for result in results) else 0


def _text(program: str, build: Build, results: Sequence[Checked]) -> str:
    """Return the verdict, a line for each part, and one for each architecture that differs."""
    style = Style.here()
    # The program with its build, and the number of equal models
    number = f"build {build.number}" if build.number else "a build without a number"
    # A build of an own checkout has no number that says anything
    if build.between:
        number += " (by its flags and architectures b{} to b{})".format(*build.between)
    commit = f", commit {build.commit}" if build.commit else ""
    # An architecture that this build is too old for is no failure of it
    states = [result.state for result in results if result.state != "unknown"]
    bad = "differs" in states or "failed" in states
    verdict = f"{states.count('equal')} of {len(states)} models equal in every part"
    lines = [
        *wrap(f"{program}: {number}{commit}", style.columns),
        style(verdict, "red" if bad else "bold"),
        "",
    ]
    # A table of the parts: how many models are equal in each
    # (device, part) -> bytes above the prediction, one of each model
    differences: dict[tuple[str, str], list[int]] = {}
    for each in results:
        for part, place, difference in each.parts:
            differences.setdefault((place, part), []).append(difference)
    rows = [
        (f"{place} {part}", f"{of_models.count(0)} of {len(of_models)}")
        for (place, part), of_models in sorted(differences.items())
    ]
    lines += table(("part", "equal"), rows, style)
    different = [result for result in results if result.state in _PROBLEMS]
    if different:
        lines.append("")
    # those that differ, failed or have an upper bound alone
    for result in different:
        what = f"{result.state}: {result.reason}"
        if result.state == "differs":
            what = ", ".join(
                f"{part} on {device} {'+' if difference > 0 else ''}{mib(difference)}"
                for part, device, difference in result.parts
                if difference
            )
        wrapped = wrap(f"{result.architecture} ({result.name}): {what}", style.columns, "", "  ")
        lines += [style(line, _PROBLEMS[result.state]) for line in wrapped]
    # By name: a user may look for one of them
    unknown = sorted({result.architecture for result in results if result.state == "unknown"})
    if unknown:
        lines += [
            "",
            *wrap(f"not in this build: {', '.join(unknown)}", style.columns, "", "  "),
        ]
    return "\n".join(lines) + "\n"


def _keep(program: str, build: Build, results: Sequence[Checked]) -> None:
    # architecture -> "part device" -> bytes above the prediction; {}: equal in every part
    seen: dict[str, dict[str, int]] = {}
    for result in results:
        # A failed launch shows no sizes, a bound no difference
        if result.state in ("equal", "differs"):
            seen.setdefault(result.architecture, {}).update(
                {f"{part} {device}": size for part, device, size in result.parts if size}
            )
    checked = CheckedBuild(
        digest(program), build.number, build.commit, now(), seen, os.path.realpath(program)
    )
    try:
        keep([checked], os.environ, of_path(program))
    # The check itself is still worth its exit code
    except AutolayersError as error:
        say(f"the result cannot be kept: {error}")


def _json(program: str, build: Build, results: Sequence[Checked]) -> dict[str, object]:
    return {
        "schema": 1,
        "program": program,
        "build": build.number,
        "commit": build.commit,
        "models": [
            {
                "name": result.name,
                "architecture": result.architecture,
                "state": result.state,
                "reason": result.reason,
                "parts": [
                    {"part": part, "device": device, "above_prediction": difference}
                    for part, device, difference in result.parts
                ],
            }
            for result in results
        ],
    }
