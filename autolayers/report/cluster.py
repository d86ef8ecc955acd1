"""A cluster's plan as text: the plan, what goes to which machine, and the effect of fewer
machines."""

from __future__ import annotations

from ..units import human
from .table import Style, stacked, wrap
from .text import plan_text, tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..planner.compare.cluster import ClusterPlan, Use


def cluster_text(
    together: ClusterPlan,
    head: str,
    commands: Mapping[str, Sequence[str]],
    style: Style | None = None,
    rest: Sequence[str] = (),
) -> str:
    """Return the whole answer; `commands` are those of each machine's servers."""
    style = style or Style()
    best = together.best
    lines = [*wrap(style(_decision(together, head), "bold"), style.width), ""]
    # A row a set of machines, the best first
    rows = [_row(use, head, "> " if use is best else "  ") for use in (best, *together.others)]
    head_row = ("  machines", "on the GPUs", "context", "prompt t/s*", "t/s*", "request*", "load*")
    lines += [*stacked(head_row, rows, style, (0, 1), first=2), ""]
    lines += [
        *wrap(
            "* predicted, not measured; load: the weights over the network, the first time",
            style.width,
        ),
        "",
    ]
    # The plan itself, as for one machine
    lines += plan_text(best.plan, style, rest).rstrip("\n").split("\n")
    for name, words in commands.items():
        lines += [
            "",
            *wrap(f"on {name}, which gets {human(best.sent[name])}:", style.width),
            *words,
        ]
    return "\n".join(lines) + "\n"


def _decision(together: ClusterPlan, head: str) -> str:
    """Return the chosen machines, and the effect of fewer or more of them."""
    best = together.best
    if not best.plan.fits:
        return "it fits on no set of these machines; this is the plan that comes closest"
    text = f"{_names(best, head)}: {_seconds(best)} a request"
    count = len(best.boxes)
    others = [use for use in together.others if use.plan.fits]
    # Machines besides the head
    fewer = [use for use in others if len(use.boxes) < count]
    larger = [use for use in others if len(use.boxes) > count]
    if fewer:
        text += f"; with fewer machines {_seconds(fewer[0])} ({_names(fewer[0], head)})"
    elif count:
        text += "; with fewer machines it does not fit"
    if larger:
        # A machine that receives no weights adds only network
        idle = not any(larger[0].sent[box.name] for box in larger[0].boxes if box not in best.boxes)
        text += (
            f"; more machines would have nothing to do ({_names(larger[0], head)})"
            if idle
            else f"; with more machines {_seconds(larger[0])} ({_names(larger[0], head)}): the "
            "network costs more than they gain"
        )
    return text


def _seconds(use: Use) -> str:
    return f"{use.plan.speed.request:.1f} s"


def _names(use: Use, head: str) -> str:
    return " + ".join([head, *(box.name for box in use.boxes)])


def _row(use: Use, head: str, mark: str) -> list[str]:
    speed = use.plan.speed
    start = [mark + _names(use, head)]
    if not use.plan.fits:
        return [*start, "does not fit", "-", "-", "-", "-", "-"]
    return [
        *start,
        use.plan.placement.removesuffix(" on the GPU"),
        str(use.plan.breakdown.n_ctx),
        tokens(speed.prompt),
        tokens(speed.generation),
        _seconds(use),
        f"{use.load:.0f} s" if use.load else "-",
    ]
