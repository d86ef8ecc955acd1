"""A plan for people, laid out for the terminal's width: first the verdict, the speed, the context,
the memory of each device, the layers and the command, then the reasons."""

from __future__ import annotations

from ..backends import backend_of
from ..planner.prices import TOO_SLOW
from ..quoting import shell
from ..records import dataclass
from ..units import GiB, at_least, gib, human, in_mib
from .command import command_lines, flag_lines
from .measured import measured_words
from .picture import grouped, in_ranges, layers, memory, name, names
from .table import (
    LABEL,
    PLAIN,
    Style,
    blocks,
    labelled,
    ranged,
    rounded,
    shortened,
    titled,
    warned,
    wrap,
)
from .table import tokens as tokens
from .users import each_words, users_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..planner.advice import Remedy
    from ..planner.plan import Alternative, Plan
    from ..work.speed import Speed


LESS_SURE = 1.3  # times the plan's doubt: an alternative's is said
# To say "a GPU of 16 GB" where a launch lacks 3.2 GiB
SOLD = (4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 80, 96, 141, 192)  # GB of a GPU's memory
# columns of the table: head, and the field of a row
_COLUMNS = (
    ("free", "free"),
    ("weights", "model"),
    ("KV cache", "context"),
    ("compute", "compute"),
    ("extra", "extra"),
    ("margin", "margin"),
    ("left", "remaining"),
)
_NOTED = 1.02  # times the plan's rate: faster
_LONGER = 1.05  # times the plan's context: longer
# (faster, longer) -> its label
_GAINS = {
    (True, True): "better",
    (True, False): "faster",
    (False, True): "longer",
    (False, False): "instead",
}
_PROMPTS = 1.1  # times the plan's rate: prompts are read faster
_INSTEAD = "`autolayers best` for the same machine lists the models of today that run there"
# what may grow in RAM (memory/server.py) -> the flag that limits it
_GROWS = {
    "prompt cache": "-cram MIB",
    "context checkpoints": "-ctxcp N",
    "more outputs": "-ub N",
}
_OTHERS = "or, with other flags in place of all those above:"
_WIDE = 60  # columns, from which on the lines of a label stand beside it
LEAST_LOST, LOST = 0.5, 0.02  # GiB, or part of it, that a program does not get


@dataclass(frozen=True)
class Level:
    """How much is said: what writes rates, sizes and contexts, what comes before slots that share
    one, and the columns before a label and of it."""

    rate: Callable[[float], str]
    size: Callable[[int], str]
    count: Callable[[int], object]
    shared: str
    indent: int
    label: int


def thousands(count: int) -> str:
    """Return a number of tokens in thousands."""
    # Below 10k a thousand tokens more or less count
    return f"{count // 1024}k" if count >= 10 * 1024 else str(count)


FULL = Level(tokens, human, int, "", 0, LABEL)
SHORT = Level(rounded, at_least, thousands, ",", 2, 11)


def plan_text(
    plan: Plan,
    style: Style = PLAIN,
    rest: Sequence[str] = (),
    verbose: bool = False,
    command: Sequence[str] = (),
) -> str:
    """Return the whole answer as text; `rest` are the user's words that do not affect memory, after
    the flags, and `command` those before. `verbose` adds MiB, the parts of the margins and of the
    rest, and a row for every device."""
    head = head_text(plan, style, rest, verbose, command)
    return head + reasons_text(plan, style, verbose, rest)


def head_text(
    plan: Plan,
    style: Style,
    rest: Sequence[str] = (),
    verbose: bool = False,
    command: Sequence[str] = (),
) -> str:
    """Return the answer itself: everything that is known before its reasons."""
    verdict, colour = ("fits", "bold") if plan.fits else ("does not fit", "red")
    # The RAM is not known, so the verdict has a condition
    if plan.fits and plan.host.free is None:
        verdict = f"fits if {human(plan.host.needed)} of RAM are free"
    lines = titled(plan.model.name, verdict, style, colour, f"{plan.model.size / GiB:.1f} GiB")
    lines += [*wrap(figures(plan), style.width), *broken(plan, style), ""]
    lines += memory(plan, style, verbose)
    drawn, meaning = layers(plan, style)
    drawn += filter(None, [meaning])
    lines += [f"{'' if i else 'layers':{LABEL}}{line}" for i, line in enumerate(drawn)]
    lines += labelled("" if drawn else "layers", [plan.placement], style)
    look = "bold" if plan.fits else ""
    lines += ["", *command_lines([*command, *plan.flags, *rest], style, look=look)]
    # Instead of the blank line, so that it stands with the command that cannot run
    short = "" if plan.fits else f"does not fit: {shortage(plan)}"
    lines += style.wrapped(short, "red")
    return "\n".join(lines) + "\n"


def reasons_text(plan: Plan, style: Style, verbose: bool = False, rest: Sequence[str] = ()) -> str:
    """Return the reasons, alternatives, --fit's choice, and what the prediction and the table
    assume."""
    lines: list[str] = []
    # What would fit comes first: nobody reads why something else was chosen
    if not plan.fits:
        for remedy in filter(is_sold, plan.remedies):
            lines += remedy_lines(plan, remedy, style, rest)
        lines.append("")
    return "\n".join([*lines, *written(said(plan, FULL, style, rest, verbose), FULL, style)]) + "\n"


def said(
    plan: Plan, level: Level, style: Style, rest: Sequence[str] = (), verbose: bool = False
) -> Iterator[tuple[str, ...] | list[str]]:
    """Yield what is said below a plan's command: a label, its text, and the flags below that; or
    lines as they are."""
    short, fits = level is SHORT, plan.fits
    if short:
        yield from (("limit", line) for line in plan.limits)
        # Much of a machine's RAM: a word about what that is
        much = fits and plan.host.free is not None and 2 * plan.host.growing > plan.host.free
        large = _growing(plan)
        when = "while it serves" if "more outputs" in large else "as conversations are saved"
        flags = " and ".join(_GROWS[name] for name in large if name in _GROWS)
        yield (
            "grows",
            f"RAM, {when} ({', '.join(large)}), limited by {flags}" * (much and flags != ""),
        )
        others = short_alternatives(plan)
        yield wrap(_OTHERS, style.width, "  ", "  ") if others else []
    else:
        yield from (("why", reason) for reason in plan.reasons)
        # What each alternative changes, gains and loses
        others = [
            ("instead", f"{shell(other.change)}: {bought(plan, other)}", *other.flags)
            for other in plan.alternatives
        ]
    yield from ((*other, *rest) for other in others)
    yield "smaller" if short else "instead", smaller_words(plan, level)
    yield "--fit", fit_in_short(plan) if short else _fit_words(plan)
    yield plan.elsewhere.backend if plan.elsewhere else "", elsewhere_words(plan, level)
    if fits:
        yield from (("speed", words) for words in ([] if short else _speed_words(plan)))
        # What somebody measured on such a machine, next to the prediction
        width = style.width if short else 0
        for words in measured_words(plan.measured, width, plan.breakdown.n_ubatch):
            yield "measured", words
    if not short:
        if fits:
            table = users_table(plan.speed)
            yield [f"{'' if i else 'serve':{LABEL}}{line}" for i, line in enumerate(table)]
        for words in [*_memory_words(plan), *(_parts(plan) if verbose else ())]:
            yield "memory", words
    if verbose:
        # The memory in MiB
        # The column for projectors, drafts and adapters is left out where nobody has any
        extra = any(device.extra for device in plan.devices)
        columns = [(head, field) for head, field in _COLUMNS if field != "extra" or extra]
        rows = [
            [
                shortened(title, max(12, style.width // 5)),
                # RAM without a margin has no cell for it
                *(
                    ""
                    if size is None or (title, field, size) == ("RAM", "margin", 0)
                    else in_mib(size)
                    for _, field in columns
                    for size in [getattr(row, field)]
                ),
            ]
            for title, row in [*((name([d]), d) for d in plan.devices), ("RAM", plan.host)]
        ]
        yield ["", *blocks(["MiB", *(head for head, _ in columns)], rows, style), ""]
    yield doubts(plan, style)
    if short:
        assumed = [f"{what} {value}".strip() for what, value in assumptions(plan.speed)]
        yield "assumed", ", ".join(assumed) * fits
        yield "less sure", ", ".join(plan.speed.unsure) * fits
        yield "instead", "" if fits else _INSTEAD
        yield "more", "--why (how it was chosen), --table (every GiB, all reasons)"


def written(
    rows: Iterable[tuple[str, ...] | list[str]], level: Level, style: Style
) -> Iterator[str]:
    """Yield the lines of what is said. In full a label stands once before its texts."""
    # Further lines have less before them on a narrow terminal
    narrow = level is SHORT and style.width < _WIDE
    below = 2 * level.indent if narrow else level.indent + level.label
    last = ""
    for row in rows:
        if isinstance(row, list):
            yield from row
            continue
        label, text, *flags = row
        if not text:
            continue
        shown = "" if level is FULL and label == last else label
        first = f"{' ' * level.indent}{shown:{level.label}}"
        yield from wrap(text, style.width, first, " " * below)
        yield from flag_lines(flags, style, below + 2 * (level is FULL)) if flags else ()
        last = label


def broken(plan: Plan, style: Style) -> list[str]:
    """Return the warning that stands with the verdict."""
    return wrap(plan.broken, style.width, "! ", "  ") if plan.broken else []


def doubts(plan: Plan, style: Style) -> list[str]:
    """Return the other warnings."""
    warnings = plan.warnings[bool(plan.broken) :]
    lines = [line for warning in warnings for line in warned(warning, style.width)]
    return [*lines, *["! sizes are upper bounds, not exact"] * plan.inexact_unsaid]


def figures(plan: Plan) -> str:
    """Return the speed and the context, with the prediction's uncertainty."""
    context, speed, inputs = context_words(plan), plan.speed, plan.inputs
    if not plan.fits:
        return context
    # --users: what each of them gets
    if speed.requests is not None:
        return f"{each_words(speed)}   {context}"
    if inputs is not None:
        unit = f" inputs/s of {inputs.tokens} tokens"
        each = ranged(inputs.per_second, speed.prompt_spread, tokens, unit)
        return f"about {each}   {tokens(speed.prompt)} tokens/s   {context}"
    generated = ranged(speed.generation, speed.generation_spread, tokens)
    prompts = ranged(speed.prompt, speed.prompt_spread, tokens, "/s")
    return f"about {generated}   prompts {prompts}   {context}"


def context_words(plan: Plan, level: Level = FULL) -> str:
    """Return the context, its slots, and the cache types if they are not f16."""
    use, count = plan.breakdown, level.count
    text = f"context {count(use.n_ctx)}"
    if use.n_seq_max > 1:
        each = f" ({use.n_seq_max} slots of {count(use.n_ctx_seq)})"
        # One cache for all (any slot may take all of it), or a fixed part for each
        text += f"{level.shared} shared by {use.n_seq_max} slots" if use.kv_unified else each
    kinds = {plan.params.cache_type_k or "f16", plan.params.cache_type_v or "f16"}
    return text + ("" if kinds == {"f16"} else f", {'/'.join(sorted(kinds))} cache")


def _speed_words(plan: Plan) -> list[str]:
    """Return the prediction for the workload, and its uncertainty."""
    speed, inputs = plan.speed, plan.inputs
    basis, correction, work = "", speed.correction, speed.workload
    # The measured launches that it is corrected by
    if correction.runs:
        when = f" of {correction.date[:10]}" if correction.date else ""
        basis = f"; calibrated by {correction.runs} run{'s' * (correction.runs != 1)}{when}"
        basis += "" if correction.own else ", other placements"
    basis += assumed_words(speed)
    head, prompt = "predicted, not measured: ", tokens(speed.prompt)
    generated, read = (
        f"(within x{spread:.2f})" for spread in (speed.generation_spread, speed.prompt_spread)
    )
    if inputs is not None:
        each = f"{1 / inputs.per_second:.3f} s for one of {inputs.tokens} tokens"
        return [f"{head}{prompt} tokens/s of inputs {read}, {each}{basis}"]
    # The flag that makes the prediction most certain, where something is assumed that one says;
    # RAM's speed counts more than the number of cores.
    names = {name for name, _ in speed.assumed}
    if "RAM" in names:
        basis += "; --ram SIZE@ddr5-6000x2 (its modules) narrows the range most"
    elif "cores" in names:
        basis += "; --cores narrows the range"
    # "" of a workload that was written as P+G@D
    asked = f"for {work.name}: " if work.name else "for "
    asked += f"{work.prompt} prompt tokens, {work.generate} generated"
    asked += f" after {work.depth}" if work.depth else ""
    asked += f", {work.requests} requests at once" if work.requests > 1 else ""
    prompts = f"prompts {prompt} {read}"
    if speed.requests is not None:
        rate = f"{tokens(speed.rate)} tokens/s in all, with prompts and waiting {generated}"
        return [f"{head}{rate}; {prompts}", f"{asked}{basis}"]
    together = " of all together while all answer" if work.requests > 1 else ""
    rate = f"{tokens(speed.generation)} tokens/s{together} {generated}"
    full = f"{tokens(speed.generation_full)} with a full context"
    return [f"{head}{rate}, {full}; {prompts}", f"{asked}: {speed.request:.1f} s{basis}"]


def assumed_words(speed: Speed) -> str:
    """Return the defaults that the prediction assumes, and what makes it less sure, in one phrase;
    "" if there are none."""
    parts = [
        f"; {what} assumed to be {value}" if what else f"; {value} assumed"
        for what, value in assumptions(speed)
    ]
    parts += [f"; less sure: {listed(speed.unsure)}"] if speed.unsure else []
    return "".join(parts)


def assumptions(speed: Speed) -> list[tuple[str, str]]:
    """Return the defaults that the prediction assumes: ("RAM", "42 GB/s"), ("", "8 cores")."""
    # rate -> the devices that it is assumed of, since eight GPUs often share one
    rates: dict[str, list[str]] = {}
    cores = []
    for what, rate in speed.assumed:
        if what == "cores":
            cores.append(("", f"{rate:.0f} cores"))
            continue
        # Networks are sold in bits, memory in bytes
        bits = what == "network"
        text = f"{rate * 8 / 1e9:g} Gbit/s" if bits else f"{rate / 1e9:.0f} GB/s"
        rates.setdefault(text, []).append(what)
    devices = [(listed(in_ranges(names)), rate) for rate, names in rates.items()]
    return [*devices, *cores]


def listed(names: Sequence[str]) -> str:
    """ "a, b and c" of at least one name."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def shortage(plan: Plan, level: Level = FULL) -> str:
    """Return the missing memory per device, as text."""
    parts = [
        f"{level.size(-d.remaining)} missing on {d.name}"
        for d in plan.devices
        # A GPU without anything of the launch lacks nothing
        if d.used and d.remaining < 0
    ]
    # None: the RAM is not known
    if plan.host.remaining is not None and plan.host.remaining < 0:
        parts.append(f"{level.size(-plan.host.remaining)} missing in RAM")
    return ", ".join(parts) or "no placement fits"


def remedy_lines(
    plan: Plan,
    remedy: Remedy,
    style: Style,
    rest: Sequence[str],
    level: Level = FULL,
    card: str = "",
) -> list[str]:
    """Return one fix for a launch that does not fit, with all the flags that are typed then; where
    they take more than a line, below what they give. `card`: the GPU that has what is added."""
    flags = [*remedy.flags, *rest] if remedy.flags else []
    words = remedy_words(remedy, level, plan.breakdown.n_ctx, shell(flags))
    whole = f"fits with {f'{card} ({words})' if card else words}"
    if not flags or len(whole) + 2 <= style.width:
        return wrap(whole, style.width, "  ", "    ")
    words = remedy_words(remedy, level, plan.breakdown.n_ctx, "these flags")
    lines = wrap(f"fits with {words}:", style.width, "  ", "    ")
    return [*lines, *flag_lines(flags, style, 4)]


def remedy_words(remedy: Remedy, level: Level = FULL, n_ctx: int = 0, flags: str = "") -> str:
    """Return one fix for a launch that does not fit: flags with what they give, and the memory to
    add, or another file. `n_ctx` is the launch's context, and `flags` are said in place of the
    remedy's own."""
    size_text = level.size
    if remedy.file:
        size = f"{size_text(remedy.file)}, {remedy.bits_per_weight:g} bits per weight"
        return f"a smaller file: {remedy.type} throughout is {size}"
    gives = [f"{tokens(remedy.speed)} tokens/s"] if remedy.speed else []
    # A context that is another one than was asked for, or than the launch would have
    gives += [f"context {remedy.n_ctx}"] if n_ctx and remedy.n_ctx not in (0, n_ctx) else []
    given = f" ({', '.join(gives)})" if gives else ""
    parts = [f"{flags or shell(remedy.flags)}{given}"] if remedy.flags else []
    if remedy.ram:
        # The machine has it, and other programs hold it
        held = " free (close other programs)" if remedy.held else ""
        parts.append(f"{size_text(remedy.ram)} more of RAM{held}")
    parts += [f"{size_text(size)} more on {device}" for device, size in remedy.devices]
    return " and ".join(parts)


def larger_card(plan: Plan, remedy: Remedy) -> str:
    """Return the GPU, as it is sold, that has what the remedy adds to the plan's only one; "" where
    there are several, or where it shares the RAM."""
    # Of several GPUs it is open which one to replace
    if remedy.kind != "vram" or len(plan.devices) != 1 or plan.host.shared:
        return ""
    wanted = plan.devices[0].total + remedy.devices[0][1]
    # The smallest whose usable memory, after what a driver keeps, is enough
    for sold in SOLD:
        usable = sold - max(LEAST_LOST, sold * LOST)
        if usable * GiB >= wanted:
            return f"a GPU of {sold} GB"
    return ""


def is_sold(remedy: Remedy) -> bool:
    """Return whether a card of today can have what a remedy adds to one device."""
    return all(size <= max(SOLD) * GiB for _, size in remedy.devices)


def hints(plan: Plan) -> list[str]:
    """Return what is much faster, for who sees no alternatives: a flag, and a smaller file where
    the launch is too slow."""
    now = tokens(plan.speed.generation)
    lines = []
    if plan.faster is not None:
        lines.append(
            f"about {tokens(plan.faster.rate)} tokens/s instead of {now}, as all weights are then "
            f"on the GPU, with {shell(plan.faster.flags)}"
        )
    if plan.smaller is not None:
        lines.append(f"about {now} tokens/s: {smaller_words(plan)}")
    return lines


def smaller_words(plan: Plan, level: Level = FULL) -> str:
    """Return a quantisation that is wholly on the GPUs, or that there is none; "" if not
    asked."""
    other, now, rate = plan.smaller, plan.speed.generation, level.rate
    if other is None:
        return ""
    # There is nothing to be wholly on
    if not plan.devices:
        return "every token reads all weights from RAM: a smaller file or model is faster"
    there = f"wholly on the GPU{'s' * (len(plan.devices) != 1)}"
    if not other.type:
        # Below that every type was tried
        kinds = "" if now < TOO_SLOW else " at Q3 or above"
        none = f"no quantisation of this model{kinds} is {there} at this context"
        return f"{none}: a smaller model is faster"
    file = f"a file of {other.type} ({other.size / GiB:.1f} GiB)"
    if not other.rate:
        return f"{file} or a smaller model would be {there}"
    return f"{file} is {there}: about {rate(other.rate)} tokens/s instead of {rate(now)}"


def elsewhere_words(plan: Plan, level: Level = FULL) -> str:
    """Return what the other backend of the GPUs is predicted to reach; "" without one."""
    if plan.elsewhere is None:
        return ""
    speed, rate = plan.elsewhere.speed, level.rate
    there = ranged(speed.rate, speed.generation_spread, rate)
    gpus = f"GPU{'s' * (len(plan.devices) > 1)}"
    here = f"{rate(plan.speed.rate)}, predicted, on the same {gpus}"
    return f"{there} instead of {here}: another build of llama.cpp; measure both"


def _fit_words(plan: Plan) -> str:
    """Return --fit's own answer; "" where it was not asked."""
    rival = plan.fit_choice
    if rival is None:
        return ""
    # A device that the plan does not have counts as full
    free = {device.name: device.free for device in plan.devices}
    short = sum(
        max(0, usage.total - free.get(device, 0))
        for device, usage in rival.breakdown.devices.items()
    )
    there, here = rival.speed, plan.speed
    full = f" ({tokens(there.generation_full)} with a full context)" * fades(there, here)
    ending = f"{tokens(there.generation)} tokens/s{full} and prompts {tokens(there.prompt)}"
    # With users a request's own rate says less than the sum
    if here.requests is not None:
        ending = f"{tokens(there.rate)} tokens/s in all, here {tokens(here.rate)}"
    if plan.inputs is not None:
        ending = f"{tokens(there.prompt)} tokens/s of inputs"
    text = f"llama-server's own choice: {rival.placement}, context {rival.breakdown.n_ctx}"
    if short:
        return f"{text}; {human(short)} more than is free, so that it cannot load"
    return f"{text}, {ending}{'' if rival.fits else '; that breaks these margins'}"


def fades(there: Speed, here: Speed) -> bool:
    """Return whether another launch is the faster one with an empty context alone, which is why it
    is not the answer."""
    return there.generation > here.generation and there.generation_full < here.generation_full


def bought(plan: Plan, other: Alternative) -> str:
    """Return an alternative's changes, its gain first."""
    here, speed = plan.speed, other.speed
    n_ctx = plan.breakdown.n_ctx
    # A gain that nobody can be sure of says so
    unsure = ""
    if speed.generation_spread > LESS_SURE * here.generation_spread:
        unsure = f" (within x{speed.generation_spread:.2f}: {assumed_words(speed)[2:]})"
    together = " in all" if speed.requests is not None else ""
    was, now = tokens(here.rate), tokens(speed.rate)
    then, full = tokens(speed.generation_full), tokens(here.generation_full)
    same = f"{then} tokens/s with a full context instead of {full}"
    filled = "as fast" if then == full else same
    # Gains come first in the line, whichever they are
    gains: list[str] = []
    losses: list[str] = []
    if other.n_ctx != n_ctx:
        (gains if other.n_ctx > n_ctx else losses).append(f"context {other.n_ctx}")
    # Rates that print alike are alike
    if now != was:
        side = gains if speed.rate > here.rate else losses
        side.append(f"{now} tokens/s{together} instead of {was}{unsure}")
    # What a shorter context is for
    if other.n_ctx < n_ctx and speed.generation_full > here.generation_full * 1.5:
        gains.insert(0, filled)
    slower = speed.prompt * 1.1 < here.prompt
    if not gains or slower or speed.prompt > here.prompt * 1.1:
        side = losses if slower and gains else gains
        side.append(f"prompts {tokens(speed.prompt)} instead of {tokens(here.prompt)}")
    # The price of a longer context comes as it fills
    if len(gains) + len(losses) == 1 and other.n_ctx > n_ctx:
        losses.append(filled)
    # What both placements have in common is not repeated
    common = f"{plan.n_gpu_layers} of {plan.n_layer + 1} layers on the GPU, "
    moved = "" if other.placement == plan.placement else other.placement.removeprefix(common)
    return ", ".join([*gains, *losses, *filter(None, (moved, other.note))])


def short_alternatives(plan: Plan) -> list[tuple[str, ...]]:
    """Return the first alternative of each gain, the fastest of those that are faster: what it
    gains and loses, then all of its flags; the table has them all. Those that are faster and longer
    come first, and one slot, which loses nothing of one person's, beside what changes answers."""
    here, n_ctx = plan.speed, plan.breakdown.n_ctx
    # (gain, whether it is one slot) -> the alternative that is shown for it
    by_gain: dict[tuple[str, bool], Alternative] = {}
    for other in plan.alternatives:
        faster, longer = other.speed.rate > here.rate * _NOTED, other.n_ctx > n_ctx * _LONGER
        gain = _GAINS[faster, longer], faster and longer and "-np" in other.change
        before = by_gain.setdefault(gain, other)
        # Of a longer context the first one stays, of speed the fastest
        if faster and other.speed.rate > before.speed.rate:
            by_gain[gain] = other
    rows: list[tuple[str, ...]] = []
    for (label, _), other in sorted(by_gain.items(), key=lambda row: row[0][0] != "better"):
        speed = other.speed
        # 17664 and 17920 are both 17k here, and no difference
        context = thousands(other.n_ctx)
        parts = [] if context == thousands(n_ctx) else [f"context {context}"]
        unsure = speed.generation_spread > LESS_SURE * here.generation_spread
        span = ranged(speed.rate, speed.generation_spread, rounded, "")
        parts.append(_rate(speed) + span[span.index(" ") :] * unsure)
        # Prompts that are read as fast as the plan's are not said, if anything else is
        alike = 1 / _PROMPTS <= speed.prompt / here.prompt <= _PROMPTS
        if not alike or (len(parts) == 1 and not unsure):
            parts.append(f"prompts {speed.prompt:.0f}/s")
        parts += filter(None, [other.note, "measure it with `autolayers tune`" * unsure])
        rows.append((label, ", ".join(parts), *other.flags))
    return rows


def _rate(speed: Speed) -> str:
    together = " of all together" if speed.workload.requests > 1 else ""
    # --users: what all of them get, as the verdict says it
    together = " in all" if speed.requests is not None else together
    return f"{rounded(speed.rate)} tokens/s{together}"


def fit_in_short(plan: Plan) -> str:
    """Return what --fit would choose, in a few words; "" where it was not asked."""
    rival, here = plan.fit_choice, plan.speed
    if rival is None:
        return ""
    there = rival.speed
    full = ""
    if fades(there, here) and there.requests is None:
        full = f" ({rounded(there.generation_full)} with a full one)"
    # An embedding model has no rate of generated tokens
    rate = f", {_rate(there)}{full}" if plan.inputs is None else ""
    words = f"context {thousands(rival.breakdown.n_ctx)}{rate}, prompts {there.prompt:.0f}/s"
    own = f"context {thousands(plan.breakdown.n_ctx)}, {_rate(here)}, prompts {here.prompt:.0f}/s"
    # The same figures twice would look like a mistake
    words = "the same context and rates" if words == own else words
    return f"llama.cpp alone: {words}{'' if rival.fits else '; that breaks these margins'}"


# --- the breakdown


def _growing(plan: Plan) -> list[str]:
    """Return what may grow in RAM while it serves, but for parts of less than 5 %."""
    sizes: dict[str, int] = {}
    for extra in plan.breakdown.extras:
        if extra.upper_limit and extra.device == "Host":
            sizes[extra.name] = sizes.get(extra.name, 0) + extra.size
    return [name for name, size in sizes.items() if size >= plan.host.growing / 20]


def _memory_words(plan: Plan) -> list[str]:
    """Return what the table does not say."""
    host = plan.host
    sentences = []
    if host.free is None:
        limits = f" ({', '.join(_growing(plan))})"
        growing = f", plus up to {gib(host.growing)}{limits}" if host.growing else ""
        sentences.append(f"needs {gib(host.needed)} of RAM{growing} (pass --ram to check)")
    sentences += [
        f"{names(group)}: {len(group)} identical GPUs, the fullest is shown (-v shows each)"
        for group in grouped(plan.devices, False)
        if len(group) > 1
    ]
    parts = [f"{gib(host.shared)} of RAM are the GPU's"] if host.shared else []
    if host.growing >= GiB // 20:  # less is 0.0 in the table
        large = ", ".join(_growing(plan))
        saved, some = plan.saved, ""
        if saved and saved.count:
            each = f"conversation{'s' * (saved.count > 1)} of {saved.tokens} tokens"
            some = f": at least {saved.count} saved {each}"
        of_what = f" ({large})" if large else ""
        parts.append(f"serving may add up to {gib(host.growing)} of RAM{of_what}{some}")
    if host.free is not None and parts:
        sentences.append("; ".join(parts))
    # What the system has of the RAM, and that a GPU with all its memory free drives no
    # display (an RPC server reports the RAM of its machine)
    host = plan.host
    local = [device for device in plan.devices if not backend_of(device.name).remote]
    parts = []
    if host.free is not None and host.total is not None and host.total > host.free:
        left = f"{gib(host.total - host.free)} of {gib(host.total)} of RAM"
        parts.append(f"{left} are left to the system")
    # --gpu 24GiB says how much to use: no word about a display
    sized = all(device.description.startswith("hypothetical") for device in plan.devices)
    empty = bool(local) and all(device.total == device.free for device in local)
    if empty and not host.shared and not sized:
        first = local[0]
        flag = f" (--budget {first.name}={first.free // GiB - 1}GiB leaves space for one)"
        budget = flag * (first.free >= 2 * GiB)
        parts.append(f"nothing else is on the GPU, not even a display{budget}")
    return [*sentences, *(["; ".join(parts)] if parts else [])]


def _parts(plan: Plan) -> list[str]:
    """Return the parts of the margins and of the rest of the breakdown."""
    lines = []
    for group in grouped(plan.devices, False):
        parts = [f"{part} {human(size)}" for part, size in group[0].margin_parts if size]
        if len(group[0].margin_parts) > 1:
            lines.append(f"margin on {names(group)}: {', '.join(parts)}")
    extras = plan.breakdown.extras
    # upper_limit: comes with use and may never be reached; the others are there at once
    for later, words in enumerate(("in addition to the model", "growing during use,")):
        for device in dict.fromkeys(e.device for e in extras if e.upper_limit == later):
            parts = [
                f"{e.name} {human(e.size)}{'' if e.exact else ' at most'}"
                for e in extras
                if (e.upper_limit, e.device) == (later, device)
            ]
            lines.append(f"{words} on {device}: {', '.join(parts)}")
    return lines
