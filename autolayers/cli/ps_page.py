"""The page of `autolayers ps` and `explain PID`, and the JSON document."""

from __future__ import annotations

from ..quoting import printable, shell
from ..units import human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..launch.servers import Running

_NO = "-"


def ps_text(found: Sequence[Running], free: Mapping[str, int], ollama: Sequence[str] = ()) -> str:
    """A block a server, then what is free."""
    rows: list[str] = []
    for running in found:
        rows += [*block(running), ""]
    if not found:
        rows += ["no llama-server runs here", ""]
    rows += [*ollama, ""] if ollama else []
    rows.append("free now    " + memory(free))
    return "\n".join(map(printable, rows)) + "\n"


def one_text(running: Running, words: Sequence[str], free: Mapping[str, int], without: Mapping[str, int]) -> str:
    """One server in full."""
    rows = [*block(running), *(f"{'may grow' if i == 0 else '':<12}{name}, up to {human(size)}"
                               for i, (name, size) in enumerate(running.grows))]
    rows += [f"{'note' if i == 0 else '':<12}{note}" for i, note in enumerate(running.notes)]
    rows += [f"{'free now':<12}{memory(free)}", f"{'without it':<12}{memory(without)}", "",
             shell([running.server.program, *words])]
    return "\n".join(map(printable, rows)) + "\n"


def block(running: Running) -> list[str]:
    server = running.server
    slots = f" {running.slots[0]} of {running.slots[1]} slots" if running.slots else ""
    facts = [f"{running.state}{slots}", f"context {running.n_ctx} a slot" if running.n_ctx else "",
             f"b{running.build}" if running.build else "", f"of {server.of}" if server.of else ""]
    rows = [f"{server.pid:<12}{running.model}   {', '.join(filter(None, facts))}"]
    for row in running.rows:
        rows.append(f"  {row.device:<10}held {size(row.held)}   predicted {size(row.predicted)}   "
                    f"unaccounted {size(row.unaccounted)}")
    grows = sum(amount for _, amount in running.grows)
    return rows + ([f"  {'':<10}may grow by {human(grows)}"] if grows else [])


def size(amount: int | None) -> str:
    return _NO if amount is None else human(amount)


def memory(free: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {human(amount)}" for name, amount in free.items())


def document(found: Sequence[Running], free: Mapping[str, int],
             ollama: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """The --json document."""
    from .. import __version__

    return {"schema": 1, "autolayers": __version__, "servers": [running.to_dict() for running in found],
            "ollama": [*ollama], "ollama_others": [*others], "free": dict(free)}
