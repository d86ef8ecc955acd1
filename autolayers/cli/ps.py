"""`autolayers ps`: what running servers hold, next to the prediction."""

from __future__ import annotations

import os
import sys
import time

from ..devices import Inventory, discover
from ..errors import AutolayersError, UsageError
from ..flags.check import read
from ..launch.secrets import without_secrets
from ..launch.servers import free_memory, look, servers
from ..output import clear, emit_json, say, show
from ..report.table import Style
from ..units import human, whole
from .ps_page import document, one_text, ps_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


_PAUSE = 2.0  # seconds
_SHOWN = 8  # of Ollama's other models


def main(words: Sequence[str]) -> int:
    arguments = read("ps", words)
    if arguments.positional:
        raise UsageError("ps takes flags alone; of one process: autolayers explain PID")
    if arguments.own.get("json"):
        # A stream of documents is no JSON
        if arguments.own.get("watch"):
            raise UsageError("--watch and --json: give one of them")
        emit_json(document(*_now()))
        return 0
    while True:
        # Everything again: servers come and go between two looks
        running, free, ollama, others = _now()
        text = ps_text(
            running,
            free,
            [*map(_ollama_line, ollama), *map(_other_line, others[:_SHOWN])],
            Style.here(),
        )
        if not arguments.own.get("watch"):
            show(text)
            return 0
        # At the top of the screen, as top does; on a pipe the blocks follow each other
        clear()
        show(text)
        sys.stdout.flush()
        time.sleep(_PAUSE)


def print_server(pid: int, as_json: bool = False) -> int:
    """Print what one server holds, for `autolayers explain PID`. Raises AutolayersError."""
    inventory = discover(os.environ)
    # None: no such process, or one that is no llama-server
    server = next(servers(pid), None)
    if server is None:
        raise AutolayersError(
            f"process {pid} is not a llama-server that is visible here: `autolayers ps` lists them"
        )
    running = look(server, inventory)
    if as_json:
        emit_json(
            {
                "schema": 1,
                **running.to_dict(),
                "free": free_memory(inventory),
                "without": free_memory(inventory, running),
            }
        )
        return 0
    # The command is printed to be started again
    words, secrets = without_secrets(server.words)
    for name in secrets:
        say(f"{name} is left out of the output")
    show(
        one_text(
            running,
            words,
            free_memory(inventory),
            free_memory(inventory, running),
            Style.here(),
        )
    )
    return 0


def _now() -> tuple[list[Any], dict[str, int], list[dict[str, Any]], list[dict[str, Any]]]:
    inventory = discover(os.environ)
    running = [look(server, inventory) for server in servers()]
    return running, free_memory(inventory), *_ollama(inventory)


def _ollama(inventory: Inventory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what Ollama has loaded and why so much of it is in RAM, by /api/ps and its log, and
    which others it would load beside it; nothing is loaded for it."""
    from ..diagnosis.diagnosis import explain
    from ..ollama.log import Log
    from ..ollama.other_models import other_models
    from ..ollama.settings import Settings
    from ..sources.ollama.api import OllamaError, OllamaServer

    try:
        server = OllamaServer.from_environment(os.environ)
        # No Ollama is the usual case: a second is all that it may cost
        loaded = server.ps(1.0)
    except OllamaError:
        return [], []
    if not loaded:
        return [], []
    # Only the log knows why layers stayed in RAM
    log = Log(os.environ)
    recent = log.recent()
    facts = explain(recent).facts if recent else None
    rows = []
    for model in loaded:
        # As /api/ps has them, bytes
        size, on_gpu = model["size"], model["size_vram"]
        row: dict[str, Any] = {
            "name": str(model.get("name", "")),
            "size": size,
            "on_gpu": on_gpu,
            "n_ctx": model.get("context_length"),
            "why": "",
        }
        # the log's last load: of one model it is this one's
        if facts and on_gpu < size and len(loaded) > 1:
            row["why"] = f"not all layers fit: {human(size)} are needed"
        elif facts and on_gpu < size:
            # What the log says was free when the model was loaded, not now
            free = sum(device.free for device in facts.devices.values())
            layers = (
                "{} of {} layers fit".format(*facts.offloaded)
                if facts.offloaded
                else "not all layers fit"
            )
            row["why"] = f"{layers}: {human(size)} are needed" + (
                f", {human(free)} were free" if free else ""
            )
        rows.append(row)
    # Another machine's Ollama: its devices are not those found here
    if not server.is_local:
        return rows, []
    try:
        # The server's own environment counts more than that of this shell
        variables = {**os.environ, **log.server().settings}
        max_loaded = whole(variables.get("OLLAMA_MAX_LOADED_MODELS", ""))
        # Ollama starts its servers without --rpc
        devices = [device for device in inventory.devices if device.kind != "rpc"]
        return rows, [
            other.to_dict()
            for other in other_models(
                server, devices, Settings.from_environment(variables), loaded, max_loaded
            )
        ]
    # What is loaded is still worth printing
    except AutolayersError:
        return rows, []


def _ollama_line(row: dict[str, Any]) -> str:
    # Not every model's server tells Ollama what it holds
    if not row["size"]:
        return f"{'ollama':<12}{row['name']}   its server does not report its memory"
    size = row["size"]
    # In per cent, as `ollama ps` prints it
    share = round(100 * row["on_gpu"] / size)
    return (
        f"{'ollama':<12}{row['name']}   {100 - share} % RAM, {share} % GPU of {human(row['size'])}"
        + (f"   {row['why']}" if row["why"] else "")
    )


def _other_line(row: Mapping[str, Any]) -> str:
    space = f"{human(row['guess'])} by its guess, {human(row['allowed'])} allowed"
    if row["keeps"]:
        return f"{'':<12}{row['name']} would be loaded as well: {space}"
    return (
        f"{'':<12}{row['name']} would unload "
        f"{row['evicts'] or 'the one with the shortest keep_alive'}: {space}"
    )
