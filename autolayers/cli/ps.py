"""`autolayers ps`: what running servers hold, beside what was predicted."""

from __future__ import annotations

import json
import os
import sys
import time

from ..devices import discover
from ..errors import AutolayersError, UsageError
from ..flags.check import read
from ..launch.secrets import without_secrets
from ..launch.servers import beside, look, servers
from ..output import clear, emit, say, show
from ..units import human
from .ps_page import document, one_text, ps_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_PAUSE = 2.0      # seconds


def main(words: Sequence[str]) -> int:
    arguments = read("ps", words)
    if arguments.positional:
        raise UsageError("ps takes flags alone; of one process: autolayers explain PID")
    if arguments.own.get("json"):
        if arguments.own.get("watch"):
            raise UsageError("--watch and --json: give one of them")
        emit(json.dumps(document(*_now()), indent=1) + "\n")
        return 0
    while True:
        found, free, ollama = _now()
        text = ps_text(found, free, list(map(_ollama_line, ollama)))
        if not arguments.own.get("watch"):
            show(text)
            return 0
        clear()
        show(text)
        sys.stdout.flush()
        time.sleep(_PAUSE)


def one(pid: int, as_json: bool = False) -> int:
    """`autolayers explain PID`."""
    found = discover(os.environ)
    server = next(servers(pid), None)
    if server is None:
        raise AutolayersError(f"process {pid} is no llama-server that can be seen: autolayers ps")
    running = look(server, found)
    if as_json:
        emit(json.dumps({"schema": 1, **running.to_dict(), "free": beside(found), "without": beside(found, running)},
                        indent=1) + "\n")
        return 0
    words, secrets = without_secrets(server.words)
    for name in secrets:
        say(f"{name} is left out of the output")
    show(one_text(running, words, beside(found), beside(found, running)))
    return 0


def _now() -> tuple[list[Any], dict[str, int], list[dict[str, Any]]]:
    found = discover(os.environ)
    running = [look(server, found) for server in servers()]
    return running, beside(found), _ollama()


def _ollama() -> list[dict[str, Any]]:
    """What Ollama has loaded and why so much of it is in RAM, by /api/ps and its log; nothing is loaded for it."""
    from ..diagnosis.diagnosis import explain
    from ..ollama.log import Log, places
    from ..sources.ollama.api import OllamaError, Server

    try:
        loaded = Server.from_environment(os.environ).ps(1.0)
    except OllamaError:
        return []
    log = next(filter(os.path.isfile, [Log(os.environ).path or "", *places(os.environ)]), None) if loaded else None
    facts = explain(log).facts if log else None
    rows = []
    for model in loaded:
        size, on_gpu = model["size"], model["size_vram"]
        row: dict[str, Any] = {"name": str(model.get("name", "")), "size": size, "on_gpu": on_gpu,
                               "n_ctx": model.get("context_length"), "why": ""}
        if facts and on_gpu < size:
            free = sum(device.free for device in facts.devices.values())
            layers = "{} of {} layers fit".format(*facts.offloaded) if facts.offloaded else "not all layers fit"
            row["why"] = f"{layers}: {human(size)} are needed" + (f", {human(free)} were free" if free else "")
        rows.append(row)
    return rows


def _ollama_line(row: dict[str, Any]) -> str:
    size = row["size"] or 1
    share = round(100 * row["on_gpu"] / size)
    return (f"{'ollama':<12}{row['name']}   {100 - share} % RAM, {share} % GPU of {human(row['size'])}"
            + (f"   {row['why']}" if row["why"] else ""))
