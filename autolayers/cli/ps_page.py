"""The page of `autolayers ps` and `explain PID`, and the JSON document."""

from __future__ import annotations

from ..quoting import command_line
from ..report.table import Style, table, wrap
from ..units import human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..launch.servers import Running

# Where a driver does not say, or nothing could be predicted
_NO = "-"
_LABEL = 12


def ps_text(
    servers: Sequence[Running],
    free: Mapping[str, int],
    ollama: Sequence[str] = (),
    style: Style | None = None,
) -> str:
    """Return a block a server, then what is free."""
    style = style or Style(width=None)
    rows: list[str] = []
    for running in servers:
        rows += [*block(running, style), ""]
    if not servers:
        rows += ["no llama-server runs here", ""]
    # What Ollama says of its models, which its servers' blocks above do not
    rows += [line for row in ollama for line in _wrapped(row, style)]
    rows += [""] if ollama else []
    return "\n".join([*rows, *_labelled("free now", memory(free), style)]) + "\n"


def one_text(
    running: Running,
    words: Sequence[str],
    free: Mapping[str, int],
    without: Mapping[str, int],
    style: Style | None = None,
) -> str:
    """Return one server in full."""
    style = style or Style(width=None)
    rows = block(running, style)
    for i, (name, amount) in enumerate(running.grows):
        rows += _labelled("" if i else "may grow", f"{name}, up to {human(amount)}", style)
    for i, note in enumerate(running.notes):
        rows += _labelled("" if i else "note", note, style)
    rows += [
        *_labelled("free now", memory(free), style),
        *_labelled("without it", memory(without), style),
        "",
        # To start it again after a stop
        style(command_line([running.server.program, *words]), "bold"),
    ]
    return "\n".join(rows) + "\n"


def block(running: Running, style: Style) -> list[str]:
    # What it says of itself; nothing of what one that is still loading does not
    facts = [running.state]
    if running.slots:
        busy, slots = running.slots
        facts[0] += f" {busy} of {slots} slots"
    if running.n_ctx:
        facts.append(f"context {running.n_ctx} a slot")
    facts += [f"b{running.build}"] if running.build else []
    facts += [f"of {running.server.of}"] if running.server.of else []
    title = f"{running.model}   {', '.join(facts)}"
    rows = _labelled(str(running.server.pid), title, style)
    # A wrapped second line is a continuation: not bold
    rows[0] = style(rows[0], "bold")
    cells = [
        [f"  {row.name}", size(row.held), size(row.predicted), size(row.unaccounted)]
        for row in running.rows
    ]
    rows += table(("  device", "held", "predicted", "unaccounted"), cells, style) if cells else []
    grows = sum(amount for _, amount in running.grows)
    return rows + ([f"  may grow by {human(grows)}"] if grows else [])


def _labelled(label: str, text: str, style: Style) -> list[str]:
    return _wrapped(f"{label:<{_LABEL}}{text}", style)


def _wrapped(text: str, style: Style) -> list[str]:
    """Return a label of _LABEL columns and its text; on a pipe one line."""
    return wrap(text[_LABEL:], style.columns, text[:_LABEL], " " * _LABEL)


def size(amount: int | None) -> str:
    return _NO if amount is None else human(amount)


def memory(free: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {human(amount)}" for name, amount in free.items())


def document(
    servers: Sequence[Running],
    free: Mapping[str, int],
    ollama: Sequence[Mapping[str, Any]],
    others: Sequence[Mapping[str, Any]],
) -> dict[str, object]:
    """Return the --json document."""
    from .. import __version__

    return {
        "schema": 1,
        "autolayers": __version__,
        "servers": [running.to_dict() for running in servers],
        "ollama": [*ollama],
        "ollama_others": [*others],
        "free": dict(free),
    }
