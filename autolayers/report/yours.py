"""A command that somebody wrote, beside a better one: as text."""

from __future__ import annotations

from itertools import zip_longest

from ..errors import LaunchRefused
from .command import command_lines
from .picture import filled
from .table import PLAIN, Style, stacked, tokens
from .text import shortage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner import Plan


def yours_text(
    yours: Plan | LaunchRefused, taken: Plan, words: Sequence[str], style: Style = PLAIN
) -> str:
    """Return the difference, both launches line by line, and the better command; `taken` is yours
    where none is better."""
    same = taken is yours
    lined: list[tuple[str, ...]] = [row[:2] for row in beside(taken, taken)]
    if not same:
        lined = list(beside(yours, taken))
    # what stands in a cell is a line each: two launches side by side are wide
    lined = [
        line for row in lined for line in zip_longest(*(c.split(", ") for c in row), fillvalue="")
    ]
    heads = ("", "yours") if same else ("", "yours", "better")
    lines = style.wrapped(difference(yours, taken), "bold")
    lines += ["", *stacked(heads, lined, style, (0,))]
    if not same:
        lines += ["", *command_lines(words, style)]
    return "\n".join(lines) + "\n"


def beside(yours: Plan | LaunchRefused, taken: Plan) -> list[tuple[str, str, str]]:
    """Return what is said of both, line by line; of a refused one there is nothing to say."""
    there = rows(taken)
    here = [("", "-")] * len(there) if isinstance(yours, LaunchRefused) else rows(yours)
    return [(what, mine, other) for (what, other), (_, mine) in zip(there, here, strict=True)]


def difference(yours: Plan | LaunchRefused, taken: Plan) -> str:
    """Return in one line what is the matter with a launch, and what the other one gains."""
    if isinstance(yours, LaunchRefused):
        does = f"writes {tokens(taken.speed.generation)} tokens/s" if taken.fits else "does not fit"
        return f"yours is refused: {yours}; this one {does}"
    if taken is yours:
        if yours.fits:
            return "yours is as good as it gets here"
        return f"yours does not fit: {shortage(yours)}; nor does another launch with its wishes"
    here, there = yours.speed, taken.speed
    if not yours.fits:
        return (
            f"yours does not fit: {shortage(yours)}; this one does, with about "
            f"{tokens(there.generation)} tokens/s"
        )
    rate, other = tokens(here.generation), tokens(there.generation)
    said = [f"yours writes {rate} tokens/s, this one {other if other != rate else 'as many'}"]
    for what, less, more in (
        ("with a full context", tokens(here.generation_full), tokens(there.generation_full)),
        ("prompts", tokens(here.prompt), tokens(there.prompt)),
        ("context", str(yours.breakdown.n_ctx), str(taken.breakdown.n_ctx)),
    ):
        if less != more:
            said.append(f"{what} {less} and {more}")
    return "; ".join(said)


def rows(plan: Plan) -> list[tuple[str, str]]:
    """Return what is said of a launch, line by line."""
    speed, host = plan.speed, plan.host
    rates = (speed.generation, speed.generation_full, speed.prompt)
    writes, full, reads = (tokens(rate) if plan.fits else "-" for rate in rates)
    lines = [
        ("fits", "yes" if plan.fits else f"no: {shortage(plan)}"),
        ("tokens/s", writes),
        ("  with a full context", full),
        ("  of a prompt", reads),
        ("context", str(plan.breakdown.n_ctx)),
        ("where", plan.placement),
    ]
    lines += [(row.name, filled(row.used, row.free)) for row in plan.devices]
    return [*lines, ("RAM", filled(host.resident, host.free))]
