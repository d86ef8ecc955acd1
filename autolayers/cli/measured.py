"""`autolayers measured [CARD] [MODEL]`: measured speeds, next to the prediction."""

from __future__ import annotations

import os
import re

from .. import __version__
from ..devices.names import find
from ..errors import AutolayersError, UsageError
from ..flags.check import nearest, read
from ..output import emit_json, say, show
from ..report.measured import cards as cards_words
from ..report.measured import rows_text
from ..report.table import Style
from ..work.measured import MeasuredRate, card_of, of_cards, rows, same, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..devices.cards import Card
    from ..machine import Device

_SHARE = "autolayers tune --share rows.jsonl llama-server -m MODEL"


def main(words: Sequence[str]) -> int:
    """Print the rows of a card and a model; without words those of this machine, or of all if it
    has none. 0."""
    arguments = read("measured", words)
    names = list(arguments.positional)
    if len(names) > 2:
        raise UsageError(
            "measured takes a card and a model: autolayers measured rtx-3060 qwen3-30b"
        )
    # Devices are looked for only where no card is named
    devices = [] if names else _here()
    here = [card_of(device.description, device.total) for device in devices]
    # The rows of these cards, of all where there are none, that match each name.
    cards = None if names else here
    # A machine whose cards nobody measured gets all rows
    matching = (of_cards(cards) if cards is not None else []) or list(rows())
    for name in names:
        matching = _matching(matching, name)
    shown = matching
    style = Style.here()
    if arguments.own.get("json"):
        emit_json(
            {"schema": 1, "autolayers": __version__, "rows": [row.to_dict() for row in shown]}
        )
    elif shown:
        show(rows_text(shown, style, bool(arguments.own.get("plot"))))
    if not shown:
        # That nothing matches, with the card or model that a misspelt name is nearest to
        known = [*{card for row in rows() for card in row.cards}, *{row.model for row in rows()}]
        # e.g. "qwen3-30b" alone: there are no rows of the card
        unknown = [name for name in names if not _matching(list(rows()), name)]
        near = [found for name in unknown if (found := nearest(name, known))]
        what = f"nothing is measured of {' '.join(names)}"
        if near:
            nothing = f"{what}; did you mean {' '.join(near)}?"
        else:
            # A card that nobody measured yet is one
            words = [name for name in unknown if _card(name) is None]
            what += f": {words[0]} is no card of --gpu list, nor a model of a row" if words else ""
            nothing = f"{what}; a row would help: {_SHARE}"
        say(nothing)
    if not names:
        # Which row would help this machine most
        # "" stands for a device that is no known card
        named = all(here)
        count = len(of_cards(here)) if named else 0
        names = here if named else [device.description or device.name for device in devices]
        kind = wanted(names)
        say(
            f"{cards_words(names)}: {count} rows are measured; one of the class {kind} would help "
            f"most: {_SHARE}"
        )
    return 0


def _matching(candidates: list[MeasuredRate], name: str) -> list[MeasuredRate]:
    """Return the rows of a card, or of a model whose name has all parts of this one."""
    # Rows of launches without a GPU have no cards
    if name.lower() == "cpu":
        return [row for row in candidates if not row.cards]
    # As the rows write it, before the shorter names of --gpu
    # (of one that is sold in several sizes, all of them: m1-max is m1-max-32g and m1-max-64g)
    its = re.compile(rf"{re.escape(name.lower())}(-\d+g)?")
    if any(map(its.fullmatch, (card for row in rows() for card in row.cards))):
        return [row for row in candidates if any(map(its.fullmatch, row.cards))]
    card = _card(name)
    if card is None:
        # No card: a model, or its file. "qwen3-30b" has the parts of "qwen3-30b-a3b-q4_k_m"
        name = os.path.basename(name).removesuffix(".gguf")
        parts = [part for part in name.lower().replace("_", "-").split("-") if part]
        return [
            row for row in candidates if all(part in row.model.replace("_", "-") for part in parts)
        ]
    # usable is in MiB
    key = card_of(card.description, card.usable << 20)
    return [row for row in candidates if any(same([card_name], [key]) for card_name in row.cards)]


def _card(name: str) -> Card | None:
    try:
        return find(name)
    except AutolayersError:
        return None


def _here() -> list[Device]:
    """Return this machine's devices; none if they cannot be listed."""
    from ..devices import discover

    try:
        # The rows are of launches without RPC servers
        return [device for device in discover(os.environ).devices if device.kind != "rpc"]
    except AutolayersError:
        return []
