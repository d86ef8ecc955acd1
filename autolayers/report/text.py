"""A plan for people, laid out for the terminal's width: first the verdict, the speed, the context,
the memory of each device, the layers and the command, then the reasons."""

from __future__ import annotations

from ..backends import backend_of
from ..planner.prices import TOO_SLOW
from ..quoting import shell
from ..records import replace
from ..units import GiB, gib, human, in_mib
from .command import command_lines, flag_lines
from .measured import measured_words
from .picture import grouped, in_ranges, memory, name, names, strip
from .table import LABEL, Style, blocks, labelled, shortened, titled, warned, wrap
from .table import tokens as tokens
from .users import each_words, users_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..planner.advice import Remedy
    from ..planner.embedder import EmbeddingInputs
    from ..planner.plan import Alternative, Plan
    from ..work.speed import Speed

LESS_SURE = 1.3  # times the plan's doubt: an alternative's is said
# To say "a GPU of 16 GB" where a launch lacks 3.2 GiB
SOLD = (4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 80, 96, 141, 192)  # GB of a GPU's memory
LEAST_LOST, LOST = 0.5, 0.02  # GiB, or part of it, that a program does not get


def plan_text(
    plan: Plan,
    style: Style | None = None,
    rest: Sequence[str] = (),
    verbose: bool = False,
    command: Sequence[str] = (),
) -> str:
    """Return the whole answer as text; `rest` are the user's words that do not affect memory, after
    the flags, and `command` those before. `verbose` adds MiB, the parts of the margins and of the
    rest, and a row for every device."""
    style = style or Style()
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
    told = wrap(plan.broken, style.width, "! ", "  ") if plan.broken else []
    lines = [*_title(plan, style), *wrap(figures(plan), style.width), *told, ""]
    lines += memory(plan, style, verbose)
    drawn = strip(plan, style)
    lines += [*(f"{'layers' if i == 0 else '':{LABEL}}{line}" for i, line in enumerate(drawn))]
    lines += wrap(
        plan.placement,
        style.width,
        "".ljust(LABEL) if drawn else "layers".ljust(LABEL),
        " " * LABEL,
    )
    look = "bold" if plan.fits else ""
    lines += ["", *command_lines([*command, *plan.flags, *rest], style, look=look), ""]
    if not plan.fits:
        # Instead of the blank line, so that it stands with the command that cannot run
        lines[-1:] = [
            style(line, "red") for line in wrap("does not fit: " + shortage(plan), style.width)
        ]
    return "\n".join(lines) + "\n"


def reasons_text(plan: Plan, style: Style, verbose: bool = False, rest: Sequence[str] = ()) -> str:
    """Return the reasons, alternatives, --fit's choice, and what the prediction and the table
    assume."""
    lines: list[str] = []
    # What would fit comes first: nobody reads why something else was chosen
    for remedy in () if plan.fits else filter(is_sold, plan.remedies):
        lines += remedy_lines(plan, remedy, style, rest)
    if not plan.fits:
        lines.append("")
    lines += labelled("why", plan.reasons, style)
    lines += _instead(plan, style, rest)
    lines += labelled("--fit", _fit_words(plan), style)
    if plan.elsewhere is not None:
        lines += labelled(plan.elsewhere.backend, [elsewhere_words(plan)], style)
    lines += labelled("speed", _speed(plan) if plan.fits else [], style)
    seen = measured_words(plan.measured, 0, plan.breakdown.n_ubatch) if plan.fits else []
    lines += labelled("measured", seen, style)
    table = users_table(plan.speed) if plan.fits else []
    lines += [f"{'serve' if i == 0 else '':{LABEL}}{line}" for i, line in enumerate(table)]
    lines += labelled("memory", [*_memory_words(plan), *(_parts(plan) if verbose else ())], style)
    if verbose:
        lines += ["", *_table(plan, style), ""]
    for warning in plan.warnings[bool(plan.broken) :]:  # the head says the first one
        lines += warned(warning, style.width)
    if plan.inexact_unsaid:
        lines.append("! sizes are upper bounds, not exact")
    return "\n".join(lines) + "\n" if lines else ""


def _title(plan: Plan, style: Style) -> list[str]:
    """Return the model, and the verdict at the right edge."""
    verdict, colour = ("fits", "bold") if plan.fits else ("does not fit", "red")
    # The RAM is not known, so the verdict has a condition
    if plan.fits and plan.host.free is None:
        verdict, colour = f"fits if {human(plan.host.needed)} of RAM are free", "bold"
    return titled(plan.model.name, verdict, style, colour, f"{plan.model.size / GiB:.1f} GiB")


def figures(plan: Plan) -> str:
    """Return the speed and the context."""
    if not plan.fits:
        return context_words(plan)
    speed = plan.speed
    # --users: what each of them gets
    if speed.requests is not None:
        return f"{each_words(speed)}   {context_words(plan)}"
    if plan.inputs is not None:
        return (
            f"{_inputs_words(plan.inputs, speed)}   {tokens(speed.prompt)} tokens/s   "
            f"{context_words(plan)}"
        )
    generated = _span(speed.generation, speed.generation_spread)
    prompts = _span(speed.prompt, speed.prompt_spread)
    return (
        f"about {tokens(speed.generation)} tokens/s {generated}   "
        f"prompts {tokens(speed.prompt)}/s {prompts}   {context_words(plan)}"
    )


def _span(rate: float, spread: float) -> str:
    """Return the range of a predicted rate."""
    return f"({tokens(rate / spread)} to {tokens(rate * spread)})"


def context_words(plan: Plan) -> str:
    """Return the context, its slots, and the cache types if they are not f16."""
    use = plan.breakdown
    text = f"context {use.n_ctx}"
    if use.n_seq_max > 1:
        each = f" ({use.n_seq_max} slots of {use.n_ctx_seq})"
        # One cache for all (any slot may take all of it), or a fixed part for each
        text += f" shared by {use.n_seq_max} slots" if use.kv_unified else each
    kinds = {plan.params.cache_type_k or "f16", plan.params.cache_type_v or "f16"}
    return text + ("" if kinds == {"f16"} else f", {'/'.join(sorted(kinds))} cache")


def _inputs_words(inputs: EmbeddingInputs, speed: Speed) -> str:
    """Return inputs per second, with the prediction's uncertainty."""
    rate = inputs.per_second
    span = _span(rate, speed.prompt_spread)
    return f"about {tokens(rate)} inputs/s of {inputs.tokens} tokens {span}"


def _speed(plan: Plan) -> list[str]:
    speed, inputs = plan.speed, plan.inputs
    if inputs is None:
        return _speed_words(speed)
    return [
        f"predicted, not measured: {tokens(speed.prompt)} tokens/s of inputs (within "
        f"x{speed.prompt_spread:.2f}), {1 / inputs.per_second:.3f} s for one of {inputs.tokens} "
        "tokens" + _calibrated_words(speed) + assumed_words(speed)
    ]


def _speed_words(speed: Speed) -> list[str]:
    """Return the prediction for the workload, and its uncertainty."""
    work = speed.workload
    requested = f"{work.prompt} prompt tokens, {work.generate} generated"
    together = ""
    if work.depth:
        requested += f" after {work.depth}"
    if work.requests > 1:
        requested += f", {work.requests} requests at once"
        together = " of all together while all answer"
    # "" of a workload that was written as P+G@D
    title = f"{work.name}: " if work.name else ""
    # The flag that makes the prediction most certain, where something is assumed that one says;
    # RAM's speed counts more than the number of cores.
    names = {name for name, _ in speed.assumed}
    if "RAM" in names:
        narrowed = "; --ram SIZE@ddr5-6000x2 (its modules) narrows the range most"
    else:
        narrowed = "; --cores narrows the range" if "cores" in names else ""
    basis = _calibrated_words(speed) + assumed_words(speed) + narrowed
    if speed.requests is not None:
        return [
            f"predicted, not measured: {tokens(speed.rate)} tokens/s in all, with prompts and "
            f"waiting (within x{speed.generation_spread:.2f}); prompts {tokens(speed.prompt)} "
            f"(within x{speed.prompt_spread:.2f})",
            f"for {title}{requested}{basis}",
        ]
    return [
        f"predicted, not measured: {tokens(speed.generation)} tokens/s{together} (within "
        f"x{speed.generation_spread:.2f}), {tokens(speed.generation_full)} with a full context; "
        f"prompts {tokens(speed.prompt)} (within x{speed.prompt_spread:.2f})",
        f"for {title}{requested}: {speed.request:.1f} s{basis}",
    ]


def _calibrated_words(speed: Speed) -> str:
    """Return the measured launches that the prediction is corrected by, in one phrase; "" if there
    are none."""
    correction = speed.correction
    if not correction.runs:
        return ""
    when = f" of {correction.date[:10]}" if correction.date else ""
    return (
        f"; calibrated by {correction.runs} "
        f"run{'s' * (correction.runs != 1)}{when}{'' if correction.own else ', other placements'}"
    )


def assumed_words(speed: Speed) -> str:
    """Return the defaults that the prediction assumes, and what makes it less sure, in one phrase;
    "" if there are none."""
    assumed = "".join(
        f"; {what} assumed to be {value}" if what else f"; {value} assumed"
        for what, value in assumptions(speed)
    )
    return assumed + (f"; less sure: {listed(speed.unsure)}" if speed.unsure else "")


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


def shortage(plan: Plan, size_text: Callable[[int], str] = human) -> str:
    """Return the missing memory per device, as text; `size_text` writes a size."""
    parts = [
        f"{size_text(-d.remaining)} missing on {d.name}"
        for d in plan.devices
        # A GPU without anything of the launch lacks nothing
        if d.used and d.remaining < 0
    ]
    # None: the RAM is not known
    if plan.host.remaining is not None and plan.host.remaining < 0:
        parts.append(f"{size_text(-plan.host.remaining)} missing in RAM")
    return ", ".join(parts) or "no placement fits"


def remedy_lines(
    plan: Plan,
    remedy: Remedy,
    style: Style,
    rest: Sequence[str],
    size_text: Callable[[int], str] = human,
    card: str = "",
) -> list[str]:
    """Return one fix for a launch that does not fit, with all the flags that are typed then; where
    they take more than a line, below what they give. `card`: the GPU that has what is added."""
    remedy = replace(remedy, flags=(*remedy.flags, *rest) if remedy.flags else ())
    words = remedy_words(remedy, size_text, plan.breakdown.n_ctx)
    whole = f"fits with {f'{card} ({words})' if card else words}"
    if not remedy.flags or len(whole) + 2 <= style.width:
        return wrap(whole, style.width, "  ", "    ")
    words = " and ".join(_parts_of_remedy(remedy, size_text, plan.breakdown.n_ctx, "these flags"))
    return [
        *wrap(f"fits with {words}:", style.width, "  ", "    "),
        *flag_lines(remedy.flags, style, 4),
    ]


def remedy_words(remedy: Remedy, size_text: Callable[[int], str] = human, n_ctx: int = 0) -> str:
    """Return one fix for a launch that does not fit; `size_text` writes a size, `n_ctx` is the
    launch's context."""
    if remedy.file:
        return (
            f"a smaller file: {remedy.type} throughout is {size_text(remedy.file)}, "
            f"{remedy.bits_per_weight:g} bits per weight"
        )
    return " and ".join(_parts_of_remedy(remedy, size_text, n_ctx, shell(remedy.flags)))


def _parts_of_remedy(
    remedy: Remedy, size_text: Callable[[int], str], n_ctx: int, flags: str
) -> list[str]:
    """Return flags with what they give, and the memory to add."""
    figures = [f"{tokens(remedy.speed)} tokens/s"] if remedy.speed else []
    # A context that is another one than was asked for, or than the launch would have
    figures += [f"context {remedy.n_ctx}"] if n_ctx and remedy.n_ctx not in (0, n_ctx) else []
    parts = [flags + (f" ({', '.join(figures)})" if figures else "")] if remedy.flags else []
    ram = [f"{size_text(remedy.ram)} more of RAM"] if remedy.ram else []
    # The machine has it, and other programs hold it
    if remedy.held:
        ram = [f"{size_text(remedy.ram)} more of RAM free (close other programs)"]
    devices = [f"{size_text(size)} more on {device}" for device, size in remedy.devices]
    return [*parts, *ram, *devices]


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


def _instead(plan: Plan, style: Style, rest: Sequence[str]) -> list[str]:
    """Return the alternatives: what each changes, gains and loses, then all of its flags."""
    lines: list[str] = []
    for i, other in enumerate(plan.alternatives):
        first = ("" if i else "instead").ljust(LABEL)
        words = f"{shell(other.change)}: {bought(plan, other)}"
        lines += wrap(words, style.width, first, " " * LABEL)
        lines += flag_lines([*other.flags, *rest], style, LABEL + 2)
    if plan.smaller is not None:
        lines += wrap(
            smaller_words(plan), style.width, ("" if lines else "instead").ljust(LABEL), " " * LABEL
        )
    return lines


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


def smaller_words(plan: Plan, rate: Callable[[float], str] = tokens) -> str:
    """Return a quantisation that is wholly on the GPUs, or that there is none."""
    other = plan.smaller
    assert other is not None
    # There is nothing to be wholly on
    if not plan.devices:
        return "every token reads all weights from RAM: a smaller file or model is faster"
    gpus = f"GPU{'s' * (len(plan.devices) != 1)}"
    if not other.type:
        # Below that every type was tried
        kinds = "" if plan.speed.generation < TOO_SLOW else " at Q3 or above"
        return (
            f"no quantisation of this model{kinds} is wholly on the {gpus} at this context: a "
            f"smaller model is faster"
        )
    file = f"file of {other.type} ({other.size / GiB:.1f} GiB)"
    if not other.rate:
        return f"a {file} or a smaller model would be wholly on the {gpus}"
    return (
        f"a {file} is wholly on the {gpus}: about {rate(other.rate)} tokens/s instead of "
        f"{rate(plan.speed.generation)}"
    )


def elsewhere_words(plan: Plan, rate: Callable[[float], str] = tokens) -> str:
    """Return what the other backend of the GPUs is predicted to reach."""
    assert plan.elsewhere is not None
    speed = plan.elsewhere.speed
    low, high = speed.rate / speed.generation_spread, speed.rate * speed.generation_spread
    return (
        f"{rate(speed.rate)} tokens/s ({rate(low)} to {rate(high)}) instead of "
        f"{rate(plan.speed.rate)}, predicted, on the same GPU{'s' * (len(plan.devices) > 1)}: "
        f"another build of llama.cpp; measure both"
    )


def _fit_words(plan: Plan) -> list[str]:
    """Return --fit's own answer."""
    rival = plan.fit_choice
    if rival is None:
        return []
    # A device that the plan does not have counts as full
    free = {device.name: device.free for device in plan.devices}
    short = sum(
        max(0, usage.total - free.get(device, 0))
        for device, usage in rival.breakdown.devices.items()
    )
    there, here = rival.speed, plan.speed
    generated = f"{tokens(there.generation)} tokens/s"
    if fades(there, here):
        generated += f" ({tokens(there.generation_full)} with a full context)"
    ending = f", {generated} and prompts {tokens(there.prompt)}"
    # With users a request's own rate says less than the sum
    if here.requests is not None:
        ending = f", {tokens(there.rate)} tokens/s in all, here {tokens(here.rate)}"
    if plan.inputs is not None:
        ending = f", {tokens(there.prompt)} tokens/s of inputs"
    if short:
        ending = f"; {human(short)} more than is free, so that it cannot load"
    elif not rival.fits:
        ending += "; that breaks these margins"
    return [
        f"llama-server's own choice: {rival.placement}, context {rival.breakdown.n_ctx}{ending}"
    ]


def fades(there: Speed, here: Speed) -> bool:
    """Return whether another launch is the faster one with an empty context alone, which is why it
    is not the answer."""
    return there.generation > here.generation and there.generation_full < here.generation_full


def bought(plan: Plan, other: Alternative) -> str:
    """Return an alternative's changes, its gain first."""
    here, speed = plan.speed, other.speed
    n_ctx = plan.breakdown.n_ctx
    # Gains come first in the line, whichever they are
    gains: list[str] = []
    losses: list[str] = []
    if other.n_ctx != n_ctx:
        side = gains if other.n_ctx > n_ctx else losses
        side.append(f"context {other.n_ctx}")
    # Rates that print alike are alike
    if tokens(speed.rate) != tokens(here.rate):
        side = gains if speed.rate > here.rate else losses
        side.append(_rate_instead(speed, here))
    # What a shorter context is for
    if other.n_ctx < n_ctx and speed.generation_full > here.generation_full * 1.5:
        gains.insert(0, _full_instead(speed, here))
    slower = speed.prompt * 1.1 < here.prompt
    if not gains or slower or speed.prompt > here.prompt * 1.1:
        side = losses if slower and gains else gains
        side.append(f"prompts {tokens(speed.prompt)} instead of {tokens(here.prompt)}")
    # The price of a longer context comes as it fills
    if len(gains) + len(losses) == 1 and other.n_ctx > n_ctx:
        losses.append(_full_instead(speed, here))
    parts = [*gains, *losses]
    if other.placement != plan.placement:
        # What both placements have in common is not repeated
        common = f"{plan.n_gpu_layers} of {plan.n_layer + 1} layers on the GPU, "
        parts.append(other.placement.removeprefix(common))
    if other.note:
        parts.append(other.note)
    return ", ".join(parts)


def _rate_instead(speed: Speed, here: Speed) -> str:
    """Return an alternative's rate of generated tokens, and how sure it is if much less so."""
    together = " in all" if speed.requests is not None else ""
    text = f"{tokens(speed.rate)} tokens/s{together} instead of {tokens(here.rate)}"
    if speed.generation_spread > LESS_SURE * here.generation_spread:
        # A gain that nobody can be sure of says so
        text += f" (within x{speed.generation_spread:.2f}: {assumed_words(speed)[2:]})"
    return text


def _full_instead(speed: Speed, here: Speed) -> str:
    """Return an alternative's rate with a full context, "as fast" if it prints the same."""
    then, now = tokens(speed.generation_full), tokens(here.generation_full)
    if then == now:
        return "as fast"
    return f"{then} tokens/s with a full context instead of {now}"


# --- the breakdown


def _table(plan: Plan, style: Style) -> list[str]:
    """Return the memory in MiB."""
    # The column for projectors, drafts and adapters is left out where nobody has any
    extra, host = any(device.extra for device in plan.devices), plan.host
    rows = [
        (name([d]), d.free, d.model, d.context, d.compute, d.extra, d.margin, d.remaining)
        for d in plan.devices
    ]
    every = [
        *rows,
        (
            "RAM",
            host.free,
            host.model,
            host.context,
            host.compute,
            host.extra,
            host.margin or None,
            host.remaining,
        ),
    ]
    heads = ["MiB", "free", "weights", "KV cache", "compute", "extra", "margin", "left"]
    columns = [i for i in range(len(heads)) if i != 5 or extra]
    cells = [
        [
            shortened(text, max(12, style.width // 5)),
            *("" if size is None else in_mib(size) for size in sizes),
        ]
        for text, *sizes in every
    ]
    return blocks([heads[i] for i in columns], [[row[i] for i in columns] for row in cells], style)


def _memory_words(plan: Plan) -> list[str]:
    """Return what the table does not say."""
    host = plan.host
    sentences = []
    if host.free is None:
        growing = (
            f", plus up to {gib(host.growing)} for the prompt cache and checkpoints"
            if host.growing
            else ""
        )
        sentences.append(f"needs {gib(host.needed)} of RAM{growing} (pass --ram to check)")
    sentences += [
        f"{names(group)}: {len(group)} identical GPUs, the fullest is shown (-v shows each)"
        for group in grouped(plan.devices, False)
        if len(group) > 1
    ]
    if host.free is None:
        return [*sentences, *_left_out(plan)]
    parts = [f"{gib(host.shared)} of RAM are the GPU's"] if host.shared else []
    if host.growing >= GiB // 20:  # less is 0.0 in the table
        saved = plan.saved
        count = saved.count or 0 if saved else 0
        some = f"{count} saved conversation{'s' * (count > 1)}"
        saved_words = f": at least {some} of {saved.tokens} tokens" if saved and count else ""
        parts.append(f"serving may add {_growing(plan)}{saved_words}")
    sentences += ["; ".join(parts)] if parts else []
    return [*sentences, *_left_out(plan)]


def _growing(plan: Plan) -> str:
    """Return what RAM may grow by, and of what: the largest parts."""
    # e.g. {"prompt cache": 8589934592, "context checkpoints": ...}
    sizes: dict[str, int] = {}
    for extra in plan.breakdown.extras:
        if extra.upper_limit and extra.device == "Host":
            sizes[extra.name] = sizes.get(extra.name, 0) + extra.size
    # Parts of less than 5 % would only make the line longer
    large = [name for name, size in sizes.items() if size >= plan.host.growing / 20]
    of_what = f" ({', '.join(large)})" if large else ""
    return f"up to {gib(plan.host.growing)} of RAM{of_what}"


def _left_out(plan: Plan) -> list[str]:
    """Return what the system has of the RAM, and that a GPU with all its memory free drives no
    display (an RPC server reports the RAM of its machine)."""
    host, local = (
        plan.host,
        [device for device in plan.devices if not backend_of(device.name).remote],
    )
    parts = []
    if host.free is not None and host.total is not None and host.total > host.free:
        parts.append(
            f"{gib(host.total - host.free)} of {gib(host.total)} of RAM are left to the system"
        )
    # --gpu 24GiB says how much to use: no word about a display
    sized = all(device.description.startswith("hypothetical") for device in plan.devices)
    empty = bool(local) and all(device.total == device.free for device in local)
    if empty and not host.shared and not sized:
        first = local[0]
        budget = f" (--budget {first.name}={first.free // GiB - 1}GiB leaves space for one)" * (
            first.free >= 2 * GiB
        )
        parts.append(f"nothing else is on the GPU, not even a display{budget}")
    return ["; ".join(parts)] if parts else []


def _parts(plan: Plan) -> list[str]:
    """Return the parts of the margins and of the rest of the breakdown."""
    lines = []
    for group in grouped(plan.devices, False):
        row = group[0]
        if len(row.margin_parts) > 1:
            parts = [f"{part} {human(size)}" for part, size in row.margin_parts if size]
            lines.append(f"margin on {names(group)}: {', '.join(parts)}")
    extras = plan.breakdown.extras
    for later, words in (
        (False, "in addition to the model on {}"),
        (True, "growing during use, on {}"),
    ):
        # upper_limit: comes with use and may never be reached; the others are there at once
        for device in dict.fromkeys(e.device for e in extras if e.upper_limit == later):
            parts = [
                f"{e.name} {human(e.size)}{'' if e.exact else ' at most'}"
                for e in extras
                if (e.upper_limit, e.device) == (later, device)
            ]
            lines.append(f"{words.format(device)}: {', '.join(parts)}")
    return lines
