"""`autolayers tune --bench FILE [MODEL]` and `--forget`: measured speeds that later predictions are
corrected by."""

from __future__ import annotations

import os

from ..devices import calibrated, discover
from ..devices.calibrated import with_ratios
from ..devices.machine_file import ratio_row, to_dict
from ..devices.machine_file import read as read_machine
from ..errors import AutolayersError, UsageError
from ..launch.calibrate import keep, ratios, read_bench
from ..machine import Ratio
from ..machine import ratios as known_ratios
from ..output import emit_json, say, say_all, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def forget() -> int:
    """Drop what is known of this machine."""
    n = calibrated.forget(os.environ)
    say(
        f"{n} measured speeds of this machine dropped"
        if n
        else "no measured speeds of this machine were kept"
    )
    return 0


def from_file(own: dict[str, Any], words: Sequence[str]) -> int:
    """Return the ratios of a file's runs: kept for this machine, or printed with the machine of
    --machine."""
    if len(words) > 1:
        raise UsageError(f"tune --bench takes a file and one model, not {words[1]!r}")
    model, path = (words[0] if words else None), own.get("machine")
    # A file that was measured elsewhere: with --machine nothing is kept here
    if path is not None:
        devices, host = read_machine(path)
    else:
        inventory = discover(os.environ)
        devices, host = list(inventory.devices), inventory.host
    runs, notes = read_bench(own["bench"], model, devices, host)
    say_all(notes)
    # The notes above have said why no row counts
    if not runs:
        raise AutolayersError(f"{own['bench']}: no row counts")
    rows = ratios(runs)
    if path is None:
        keep(rows, devices, os.environ)
        answer(rows, bool(own.get("json")))
    else:
        # With those that the file already had: the output can take its place
        devices, host = with_ratios(devices, host, [*known_ratios(devices, host), *rows])
        emit_json(to_dict(devices, host), 2)
    return 0


def answer(rows: Sequence[Ratio], as_json: bool) -> None:
    """Print what was measured."""
    if as_json:
        emit_json({"schema": 1, "measured": list(map(ratio_row, rows))})
    else:
        show("".join(f"{line}\n" for line in lines(rows)))


def lines(rows: Sequence[Ratio]) -> list[str]:
    """Return a line for each class and kind of rate."""
    said = []
    for row in rows:
        # llama-bench's words for generated tokens and for prompts
        kind = {"tg": "tokens", "pp": "prompts"}[row.kind]
        backend = f", {row.backend}" if row.backend else ""
        build = f" b{row.build}" if row.build else ""
        runs = f"{row.n} run" if row.n == 1 else f"{row.n} runs"
        date = f", {row.date[:10]}" if row.date else ""
        said.append(
            f"measured  {row.placement}{backend}{build}: "
            f"{kind} at {row.ratio:.2f} of the prediction ({runs}{date})"
        )
    return said
