"""`--why` as a table of at most ten lines, or as many blocks where a line is too long for the
terminal."""

from __future__ import annotations

from math import prod

from ..units import GiB
from .table import Style, labelled, stacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..planner.why import Why


_SLOTS = 6  # numbers of slots for people
_PIPE = Style(width=None)  # a fact a line


def why_text(why: Why, style: Style = _PIPE) -> str:
    """Return one line a candidate, the chosen one marked, then what would change it."""
    rows = [
        (
            f"{'*' if row.chosen else ' '} {row.placement}",
            f"{row.devices / GiB:.1f}",
            f"{row.ram / GiB:.1f}",
            str(row.n_ctx),
            f"{row.seconds:.2f} s",
            row.verdict,
        )
        for row in why.candidates
    ]
    marks = {i: "bold" for i, row in enumerate(why.candidates) if row.chosen}
    lines = stacked(("  GiB", "GPUs", "RAM", "context", "request", ""), rows, style, (0, 5), marks)
    # Factors of planner.prices that counted for the chosen launch
    prices = [
        f"{factor:.2f} ({what})"
        for row in why.candidates
        if row.chosen
        for what, factor in row.prices
    ]
    counted = f"the request's seconds count times {', '.join(prices)}" if prices else ""
    # Slots and caches for people
    each = ", ".join([f"{what} {seconds:.2f} s" for what, seconds in why.decided[:_SLOTS]])
    slots = f"until all have an answer, prices counted: {each}" if len(why.decided) > 1 else ""
    texts = [text for text in (slots, counted, why.more, why.smaller) if text]
    # On a pipe a fact is a line, without a label
    lines += labelled("with", texts, style) if style.bounded else texts
    # All that was measured, in its order, and what was promised and never measured
    tried = [
        (row.placement, str(row.n_ctx), f"{row.seconds:.2f} s", row.verdict) for row in why.tried
    ]
    if tried:
        heads = ("measured, in this order", "context", "request", "")
        lines += ["", *stacked(heads, tried, style, (0, 3))]
    promised = [(each.what, f"{each.seconds:.2f} s at best") for each in why.promised]
    if tried and promised:
        about = "promised and never measured: with their prices these count no less than the best"
        for row in why.candidates:
            counts = row.seconds * prod([factor for _, factor in row.prices])
            # --strategy layers counts layers first: its promises are no seconds
            if row.chosen and why.promised[0].seconds >= 0.99 * counts:
                about += f", {counts:.2f} s"
        lines += ["", *stacked((about, ""), promised, style, (0,))]
    return "\n".join(lines) + "\n"
