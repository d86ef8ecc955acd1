"""A cluster's plan as text: the plan, what goes to which machine, and the effect of fewer
machines."""

from __future__ import annotations

from ..units import human
from .table import PLAIN, Style, stacked, wrap
from .text import plan_text, tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..planner.compare.cluster import ClusterPlan, Use


def cluster_text(
    together: ClusterPlan,
    head: str,
    commands: Mapping[str, Sequence[str]],
    style: Style = PLAIN,
    rest: Sequence[str] = (),
) -> str:
    """Return the whole answer; `commands` are those of each machine's servers."""
    best = together.best
    lines = [*wrap(style(_decision(together, head), "bold"), style.width), ""]
    # A row a set of machines, the best first
    rows = []
    for use in (best, *together.others):
        speed = use.plan.speed
        cells = ["does not fit", *["-"] * 5]
        if use.plan.fits:
            cells = [
                use.plan.placement.removesuffix(" on the GPU"),
                str(use.plan.breakdown.n_ctx),
                tokens(speed.prompt),
                tokens(speed.generation),
                _seconds(use),
                f"{use.load:.0f} s" if use.load else "-",
            ]
        rows.append([f"{'> ' if use is best else '  '}{_names(use, head)}", *cells])
    head_row = ("  machines", "on the GPUs", "context", "prompt t/s*", "t/s*", "request*", "load*")
    lines += [*stacked(head_row, rows, style, (0, 1), first=2), ""]
    note = "* predicted, not measured; load: the weights over the network, the first time"
    lines += [*wrap(note, style.width), ""]
    # The plan itself, as for one machine
    lines += plan_text(best.plan, style, rest).rstrip("\n").split("\n")
    for name, words in commands.items():
        where = f"on {name}, which gets {human(best.sent[name])}:"
        lines += ["", *wrap(where, style.width), *words]
    return "\n".join(lines) + "\n"


def _decision(together: ClusterPlan, head: str) -> str:
    """Return the chosen machines, and the effect of fewer or more of them."""
    best = together.best
    if not best.plan.fits:
        return "it fits on no set of these machines; this is the plan that comes closest"
    text = f"{_names(best, head)}: {_seconds(best)} a request"
    # Machines besides the head
    count = len(best.boxes)
    others = [use for use in together.others if use.plan.fits]
    fewer = next((use for use in others if len(use.boxes) < count), None)
    more = next((use for use in others if len(use.boxes) > count), None)
    if fewer:
        text += f"; with fewer machines {_seconds(fewer)} ({_names(fewer, head)})"
    elif count:
        text += "; with fewer machines it does not fit"
    if more is None:
        return text
    # A machine that receives no weights adds only network
    if not any(more.sent[box.name] for box in more.boxes if box not in best.boxes):
        return f"{text}; more machines would have nothing to do ({_names(more, head)})"
    why = "the network costs more than they gain"
    return f"{text}; with more machines {_seconds(more)} ({_names(more, head)}): {why}"


def _seconds(use: Use) -> str:
    return f"{use.plan.speed.request:.1f} s"


def _names(use: Use, head: str) -> str:
    return " + ".join([head, *(box.name for box in use.boxes)])
