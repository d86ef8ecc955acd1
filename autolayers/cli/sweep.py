"""`autolayers sweep MODEL...`: what if."""

from __future__ import annotations

import os
import sys

from ..errors import UsageError

HELP = """\
usage: autolayers sweep MODEL [MODEL...] [--contexts N,N,...] [--types f16,q8_0,...] [--gpus "8GiB 24GiB 24GiB,24GiB"]
                        [--plot] [--json] [llama-server flags] [own flags]

One plan per model (several quantisations, say), machine, cache type and context: layers on the GPU, memory and
predicted speed as tables, with --plot as bars. Without --gpus (or --gpu) for this machine.
"""

_LISTS = ("--contexts", "--types", "--gpus")


def main(words: list[str]) -> int:
    """Prints the sweep's table, bars or JSON."""
    if "-h" in words or "--help" in words:
        sys.stdout.write(HELP)
        return 0
    lists, plot, others = _own(words)
    from ..arguments import config_files, parse
    from ..planner import machine_for
    from ..planner.sweep import sweep
    from ..wishes import read
    from .plan import load

    arguments = parse(others, os.environ, config_files(os.environ))
    if not arguments.positional:
        raise UsageError("which model? autolayers sweep MODEL.gguf; autolayers sweep --help says more")
    params, policy = read(arguments, None)
    contexts = [_context(text) for text in lists.get("--contexts", "").split(",") if text]
    types = [text for text in lists.get("--types", "").split(",") if text]
    from dataclasses import replace

    specs = lists.get("--gpus", "").split() or ([policy.gpu] if policy.gpu else [])
    machines = [(spec, machine_for(params, replace(policy, gpu=spec), None, None, os.environ)[0]) for spec in specs]
    if not machines:
        machines = [("here", machine_for(params, policy, None, None, os.environ)[0])]
    points = sweep([load(name) for name in arguments.positional], machines, params, policy, contexts, types)
    if arguments.own.get("format") == "json":
        import json

        print(json.dumps({"schema": 1, "points": [point.to_dict() for point in points]}, indent=1))
        return 0
    from ..report.sweep import bars, sweep_text
    from ..report.table import Style

    style = Style.of(sys.stdout, os.environ)
    sys.stdout.write((bars if plot else sweep_text)(points, style))
    return 0


def _own(words: list[str]) -> tuple[dict[str, str], bool, list[str]]:
    lists: dict[str, str] = {}
    others: list[str] = []
    i = 0
    while i < len(words):
        name, equals, value = words[i].partition("=")
        if name in _LISTS:
            if not equals:
                i += 1
                if i >= len(words):
                    raise UsageError(f"{name} needs a value")
                value = words[i]
            lists[name] = value
        elif words[i] != "--plot":
            others.append(words[i])
        i += 1
    return lists, "--plot" in words, others


def _context(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise UsageError(f"--contexts: {text!r} is no number of tokens")
    return int(text)
