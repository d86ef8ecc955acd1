"""Which file, as text: a row for each, the chosen one marked, and a line of advice. Which GPU: a
table for each kind.
"""

from __future__ import annotations

from ..planner.compare import cards as which_card
from ..planner.compare.choose import (
    EXPERTS,
    FLUENT,
    GOOD,
    IN_RAM,
    NO,
    PARTLY,
    POOR,
    READS,
    WHOLE,
    WHOLLY,
    Choice,
    Recommended,
    front,
)
from ..planner.prices import READABLE, TOO_SLOW
from ..units import GiB
from .command import command_lines
from .measured import measured_words
from .table import PLAIN, Style, labelled, stacked, table, wrap
from .text import tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..planner.compare.cards import Runs

_NOTE = "predicted, not measured; context: the largest at this placement, for one conversation"
_USUAL = (
    "over about 20 models; small ones a band worse). Larger by half a bit is nearly always closer "
    "to the original, less is not decided by size"
)
_BEATEN = "another is as small, as fast and not known to be less close to the original"
_COLUMN = {WHOLLY: "fully"}  # the table's word, if not the verdict itself
# follows the name of a file
_RUNS = {
    WHOLLY: "is fully on the GPU",
    EXPERTS: "has experts in RAM",
    PARTLY: "is partly in RAM",
    IN_RAM: "is in RAM only",
    NO: "does not fit",
}


def choices_text(
    title: str,
    names: Sequence[str],
    choices: Sequence[Choice],
    advice: Recommended | None,
    n_ctx: int,
    command: Sequence[str],
    style: Style = PLAIN,
) -> str:
    """Return the advice, the table, smallest file first, and the notes. `command` starts the chosen
    one."""
    # Indices into names and choices; the row of a file is its place in this order
    order = sorted(range(len(choices)), key=lambda i: (choices[i].size, i))
    rows, marks = [], {}
    for at, i in enumerate(order):
        choice = choices[i]
        taken = advice is not None and i == advice.take
        if taken:
            marks[at] = "bold"
        elif not choice.fits:
            marks[at] = "dim"
        speed, usual = choice.speed, choice.usual.band if choice.usual else "-"
        rows.append(
            [
                ("> " if taken else "  ") + names[i],
                f"{choice.size / GiB:.1f}",
                f"{choice.bits_per_weight:.2f}",
                _COLUMN.get(choice.verdict, choice.verdict),
                str(choice.n_ctx) if choice.n_ctx else "-",
                tokens(speed.prompt) if speed else "-",
                # An embedding model generates nothing
                "-" if speed is None or choice.inputs else tokens(speed.generation),
                # A figure of --quality, otherwise what is usual for the type
                f"{choice.measured.kld:.4f}" if choice.measured else usual,
            ]
        )
    head = ("  file", "GiB", "bits", "on the GPU", "context", "prompts*", "t/s*", "quality")
    lines = [
        *wrap(title, style.width),
        *style.wrapped(_taken(names, choices, advice, n_ctx), "bold"),
        "",
        # Where it is too wide the bits go first: the name says them nearly
        *stacked(head, rows, style, (0, 3), marks, less=(2,)),
        "",
        *([*command_lines(command, style), ""] if command else []),
    ]
    measured = choices[advice.take].beside if advice else None
    lines += labelled("measured", measured_words(measured), style)
    # Files of llama-perplexity's output, as they were named
    sources = sorted({choice.measured.source for choice in choices if choice.measured})
    notes = [f"measured by {', '.join(sources)}"] if sources else []
    guessed = {
        choice.usual.type: f"{choice.usual.type} {choice.usual.least:g} to {choice.usual.most:g}"
        for choice in choices
        if choice.usual and not choice.measured
    }
    if guessed:
        notes.append(f"as is usual for the type ({', '.join(guessed.values())} {_USUAL}")
    # The files that fit and are not on the front; one that does not fit is no choice anyway
    on_front = front(choices, advice.take if advice else None)
    fit = zip(names, choices, on_front, strict=True)
    beaten = ", ".join([name for name, choice, first in fit if choice.fits and not first])
    for label, text in (
        ("next", _next(names, choices, advice)),
        ("quality", f"mean KL divergence, {'; else '.join(notes)}" if notes else ""),
        ("beaten", beaten and f"{_BEATEN}: {beaten}"),
        ("*", _NOTE),
    ):
        lines += labelled(label, [text], style)
    return "\n".join(lines) + "\n"


def advice_words(
    names: Sequence[str], choices: Sequence[Choice], advice: Recommended | None, n_ctx: int
) -> str:
    """Return the advice in one line."""
    after = _next(names, choices, advice)
    return _taken(names, choices, advice, n_ctx) + (f". Next one up: {after}" if after else "")


def _taken(
    names: Sequence[str], choices: Sequence[Choice], advice: Recommended | None, n_ctx: int
) -> str:
    if advice is None:
        # Nothing fits: less context may help, a larger file surely not
        smallest = min(choice.size for choice in choices) / GiB
        less = max((choice.n_ctx for choice in choices), default=0)
        way = f"with less context some do: -c {less}" if less else f"the smallest, {smallest:.2f}"
        way += "" if less else " GiB, is too large for this machine; look for a smaller model"
        return f"none fits with {n_ctx} tokens of context; {way}"
    first, runs = choices[advice.take], _RUNS[choices[advice.take].verdict]
    # Why it is taken
    fluent = FLUENT if first.mixture else READABLE
    closest = f"the closest to the original at {fluent:.0f} t/s or more"
    level = f"at Q{min(first.level, GOOD)} or above" if first.level >= POOR else "that fits"
    what = f"{closest if advice.rule == READS else f'the fastest {level}'}; it {runs}"
    if advice.rule == WHOLE:
        n_ctx = min(n_ctx, first.n_ctx_train or n_ctx)
        what = f"the largest that is fully on the GPU with {n_ctx} tokens of context"
    # With one choice there is no rule to name
    elif sum(choice.fits for choice in choices) == 1:
        what = f"the only one that fits; it {runs}"
    # A mixture with experts in RAM may be as fast as a smaller file on the GPU
    if advice.over is not None:
        larger = f"larger than {names[advice.over]}, the largest that is fully on the GPU"
        what = f"{larger}, and no slower; it {runs}"
    text = f"take {names[advice.take]} ({first.size / GiB:.2f} GiB): {what}"
    if first.inputs is not None:
        return f"{text}, {tokens(first.inputs.per_second)} inputs/s of {first.inputs.tokens} tokens"
    text += f", {tokens(first.rate)} t/s" if first.speed else ""
    # It is the best of these files, and still not worth a download
    return text + ("; nobody waits for that: take a smaller model" if first.rate < TOO_SLOW else "")


def _next(names: Sequence[str], choices: Sequence[Choice], advice: Recommended | None) -> str:
    if advice is None or advice.next is None:
        return ""
    choice, first = choices[advice.next], choices[advice.take]
    text = f"{names[advice.next]} ({choice.size / GiB:.2f} GiB) {_RUNS[choice.verdict]}"
    # The next larger file has its price, too: here the context
    if choice.verdict == NO:
        less = f" with that context; with {choice.n_ctx} tokens it does"
        return text + less * bool(choice.n_ctx)
    if choice.verdict == PARTLY:
        text += f" ({choice.placement})"
    if choice.speed and first.speed:
        now, then = tokens(choice.speed.generation), tokens(first.speed.generation)
        text += f": {now} t/s instead of {then}"
    return text


# the heading of each kind's table
_KINDS = {
    which_card.ONE: "fully on one GPU",
    which_card.TWO: "fully on two identical GPUs",
    which_card.UNIFIED: "fully in unified memory, within the system's limit",
    which_card.EXPERTS: "on one GPU with experts in RAM, of each size the fastest and the "
    "usual ones",
}


def cards_text(
    name: str,
    size: int,
    n_ctx: int,
    min_speed: float,
    by_kind: Mapping[str, Sequence[Runs]],
    style: Style = PLAIN,
    command: Sequence[str] = (),
) -> str:
    """Return the GPUs that run a model, a table for each kind that has any, and the `command` that
    plans one of them."""
    speed = f" at {min_speed:g} tokens per second or more" if min_speed else ""
    title = f"{name} ({size / GiB:.2f} GiB) with {n_ctx} tokens of context{speed}"
    lines = style.wrapped(title, "bold")
    # Every kind of machine was tried
    if not any(by_kind.values()):
        way = (
            "no known GPU and no pair of identical GPUs: a smaller quantisation, less context or "
            "cache types such as -ctk q8_0 -ctv q8_0 need less"
        )
        return "\n".join([*lines, "", *wrap(way, style.width)]) + "\n"
    for kind, rows in by_kind.items():
        if not rows:
            continue
        # Dozens of cards run a small model: the first ones, and those that people buy
        experts = kind == which_card.EXPERTS
        shown = [
            runs
            for i, runs in enumerate(rows)
            if experts or i < which_card.MOST or runs.name in which_card.USUAL
        ]
        cells = [
            [
                f"  2x {runs.name}" if runs.count == 2 else f"  {runs.name}",
                f"{runs.memory * runs.count / GiB:.1f}",
                f"{runs.left / GiB:.2f}",
                tokens(runs.speed.prompt),
                tokens(runs.speed.generation),
            ]
            for runs in shown
        ]
        # Two blanks, so that the table stands below its heading
        heads = ["  card", "GiB", "left", "prompts*", "t/s*"]
        if any(runs.measured for runs in shown):
            heads.append("measured")
            for row, runs in zip(cells, shown, strict=True):
                # A measured row may be of prompts alone
                near = runs.measured.generation if runs.measured else None
                row.append(tokens(near.rate) if near else "-")
        if experts:
            heads += ["in RAM", "-ncmoe"]
            for row, runs in zip(cells, shown, strict=True):
                row += [f"{runs.ram / GiB:.1f}", str(runs.n_cpu_moe)]
        lines += [
            "",
            *wrap(_KINDS[kind], style.width),
            *table(heads, cells, style),
        ]
        if len(rows) > len(shown):
            others = ", ".join(runs.name for runs in rows if runs not in shown)
            lines += wrap(f"and, with as much memory: {others}", style.width, "  ", "  ")
    note = "predicted, not measured; left: GiB on the fullest GPU, after its margin"
    if any(runs.measured for rows in by_kind.values() for runs in rows):
        nearest = "t/s of the nearest launch of this model or its twin (autolayers measured)"
        note += f"; measured: {nearest}"
    lines += ["", *([*command_lines(command, style), ""] if command else [])]
    return "\n".join([*lines, *labelled("*", [note], style)]) + "\n"
