"""`--why` as a table of at most ten lines."""

from __future__ import annotations

from ..quoting import printable
from ..units import human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..planner.why import Why


def why_text(found: Why) -> str:
    """One line a candidate, the chosen one marked, then what would change it."""
    head = ("", "GPUs", "RAM", "context", "request", "", "")
    rows = [("*" if row.chosen else "", human(row.devices), human(row.ram), str(row.n_ctx), f"{row.seconds:.2f} s",
             row.placement, row.verdict) for row in found.candidates]
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    lines = ["  ".join((cell.ljust if i in (0, 5, 6) else cell.rjust)(width)
                       for i, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
             for line in (head, *rows)]
    lines += [text for text in (found.more, found.smaller) if text]
    return "\n".join(map(printable, lines)) + "\n"
