"""A plan for people: its memory, alternatives and flags; laid out for the terminal's width."""

from __future__ import annotations

from ..quoting import printable, shell
from ..units import human, in_mib
from .table import Style, table, wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.advice import Remedy
    from ..planner.explain import Alternative
    from ..planner.plan import DeviceRow, Plan
    from ..work.speed import Speed

ALIKE = 3             # identical GPUs with the same free memory that share a row
NEARLY_FULL = 0.02    # of a device's memory
LESS_SURE = 1.3       # times the plan's doubt: an alternative's is said


def plan_text(plan: Plan, style: Style | None = None, rest: Sequence[str] = (), verbose: bool = False) -> str:
    """The whole answer as text; `rest` are the user's words that do not affect memory, after the flags.
    `verbose` adds the parts of the margins and of the rest, and a row for every device."""
    style = style or Style()
    model = plan.model
    lines = [
        f"{style(model.name, 'bold')}  {model.architecture}, {plan.n_layer} layers, {human(model.size)}",
        *wrap(f"{plan.placement}, {context_words(plan)}", style.width),
        "",
        *_memory(plan, style, verbose),
        "",
    ]
    for line in speed_words(plan.speed) if plan.fits else ():
        lines += wrap(line, style.width, "", "  ")
    lines += _decision(plan, style)
    for reason in plan.reasons:
        lines += wrap(reason, style.width, "- ", "  ")
    if verbose:
        for part in _parts(plan):
            lines += wrap(part, style.width, "- ", "  ")
    for warning in plan.warnings:
        lines += [style(line, "yellow") for line in wrap(warning, style.width, "! ", "  ")]
    if not plan.exact:
        lines.append(style("! sizes are upper bounds, not exact", "yellow"))
    lines += [""] if lines[-1] else []
    if plan.fits:
        lines += [style(line, "green") for line in wrap(fits_words(plan), style.width)]
    else:
        lines += [style(line, "red") for line in wrap("does not fit: " + shortage(plan), style.width)]
        for remedy in plan.remedies:
            lines += wrap("fits with " + remedy_words(remedy), style.width, "  ", "    ")
    return "\n".join([*lines, shell([*plan.flags, *rest])]) + "\n"


def context_words(plan: Plan) -> str:
    """The context, its slots, and the cache types if they are not f16."""
    use = plan.breakdown
    text = f"context {use.n_ctx}"
    if use.n_seq_max > 1:
        shared = f" shared by {use.n_seq_max} slots"
        text += shared if use.kv_unified else f" ({use.n_seq_max} slots of {use.n_ctx_seq})"
    kinds = {plan.params.cache_type_k or "f16", plan.params.cache_type_v or "f16"}
    return text + ("" if kinds == {"f16"} else f", {'/'.join(sorted(kinds))} cache")


def speed_words(speed: Speed) -> list[str]:
    """The prediction for the workload, and its uncertainty."""
    work = speed.workload
    asked = f"{work.prompt} prompt tokens, {work.generate} generated"
    asked += f" after {work.depth}" if work.depth else ""
    asked += f", {work.requests} requests at once" if work.requests > 1 else ""
    name = f"{work.name}: " if work.name else ""
    return [
        f"predicted, not measured: {tokens(speed.generation)} tokens/s (within "
        f"x{speed.generation_spread:.2f}), "
        f"{tokens(speed.generation_full)} with a full context; "
        f"prompts {tokens(speed.prompt)} (within x{speed.prompt_spread:.2f})",
        f"for {name}{asked}: {speed.request:.1f} s" + calibrated_words(speed) + assumed_words(speed)]


def calibrated_words(speed: Speed) -> str:
    """The measured launches that the prediction is corrected by, in one phrase; "" if there are none."""
    known = speed.correction
    if not known.runs:
        return ""
    when = f" of {known.date[:10]}" if known.date else ""
    return f"; calibrated by {known.runs} run{'s' * (known.runs != 1)}{when}{'' if known.own else ', other placements'}"


def assumed_words(speed: Speed) -> str:
    """The defaults that the prediction assumes, in one phrase; "" if there are none."""
    rates: dict[str, list[str]] = {}
    cores = "".join(f"; {count:.0f} cores assumed" for name, count in speed.assumed if name == "cores")
    for name, rate in speed.assumed:
        if name == "cores":
            continue
        said = f"{rate * 8 / 1e9:g} Gbit/s" if name == "network" else f"{rate / 1e9:.0f} GB/s"
        rates.setdefault(said, []).append(name)
    return "".join(f"; {listed(names)} assumed to be {rate}" for rate, names in rates.items()) + cores


def listed(names: Sequence[str]) -> str:
    """"a, b and c" of at least one name."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def tokens(rate: float) -> str:
    """Tokens per second with three digits."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"


def fits_words(plan: Plan) -> str:
    """The verdict on a plan that fits; if the size of RAM is unknown, how much is needed."""
    if plan.host.free is not None:
        return "fits"
    growing = f", plus up to {human(plan.host.growing)} for the prompt cache and checkpoints" \
        if plan.host.growing else ""
    return f"needs {human(plan.host.needed)} of RAM{growing} (pass --ram to check)"


def shortage(plan: Plan) -> str:
    """The missing memory per device, as text."""
    parts = [f"{human(-d.remaining)} missing on {d.name}" for d in plan.devices if d.used and d.remaining < 0]
    if plan.host.remaining is not None and plan.host.remaining < 0:
        parts.append(f"{human(-plan.host.remaining)} missing in RAM")
    return ", ".join(parts) or "no placement fits"


def remedy_words(remedy: Remedy) -> str:
    """One fix for a launch that does not fit."""
    if remedy.flags:
        return shell(remedy.flags) + (f" ({tokens(remedy.speed)} tokens/s)" if remedy.speed else "")
    if remedy.file:
        return (f"a smaller file: {remedy.type} throughout is {human(remedy.file)}, "
                f"{remedy.bits_per_weight:g} bits per weight")
    parts = [f"{human(remedy.ram)} more of RAM"] if remedy.ram else []
    return " and ".join([*parts, *(f"{human(size)} more on {name}" for name, size in remedy.devices)])


# --- the decision

def _decision(plan: Plan, style: Style) -> list[str]:
    """The alternatives and their gains, and --fit's own answer."""
    lines: list[str] = []
    if plan.alternatives:
        lines += ["", "instead, with"]
        words = [shell(other.flags) for other in plan.alternatives]
        column = max(map(len, words)) + 4
        for said, other in zip(words, plan.alternatives, strict=True):
            lines += wrap(bought(plan, other), style.width, f"  {said}".ljust(column), " " * column)
    rival = plan.fit_choice
    if rival is not None:
        free = {device.name: device.free for device in plan.devices}
        short = sum(max(0, usage.total - free.get(name, 0)) for name, usage in rival.breakdown.devices.items())
        said = f", {tokens(rival.speed.generation)} tokens/s and prompts {tokens(rival.speed.prompt)}"
        if short:
            said = f"; {human(short)} more than is free, so that it cannot load"
        elif not rival.fits:
            said += "; that breaks these margins"
        lines += wrap(f"--fit, llama-server's own choice: {rival.placement}, context {rival.breakdown.n_ctx}{said}",
                      style.width, "", "  ")
    return [*lines, ""]


def bought(plan: Plan, other: Alternative) -> str:
    """An alternative's changes, its gain first."""
    here, speed = plan.speed, other.speed
    gains: list[str] = []
    losses: list[str] = []
    if other.n_ctx != plan.breakdown.n_ctx:
        (gains if other.n_ctx > plan.breakdown.n_ctx else losses).append(f"context {other.n_ctx}")
    if tokens(speed.generation) != tokens(here.generation):
        text = f"{tokens(speed.generation)} tokens/s instead of {tokens(here.generation)}"
        if speed.generation_spread > LESS_SURE * here.generation_spread:
            text += f" (within x{speed.generation_spread:.2f}: {assumed_words(speed)[2:]})"
        (gains if speed.generation > here.generation else losses).append(text)
    if not gains or speed.prompt > here.prompt * 1.1:
        gains.append(f"prompts {tokens(speed.prompt)} instead of {tokens(here.prompt)}")
    common = f"{plan.n_gpu_layers} of {plan.n_layer + 1} layers on the GPU, "
    where = [other.placement.removeprefix(common)] if other.placement != plan.placement else []
    return ", ".join([*gains, *losses, *where])


# --- the breakdown

def _memory(plan: Plan, style: Style, verbose: bool) -> list[str]:
    """The table, with as many decimals and as much of the GPUs' names as fit."""
    groups = _groups(plan.devices, verbose)
    rows = [(_name(group), min(group, key=lambda device: device.remaining)) for group in groups]
    extra = any(row.extra for _, row in rows)
    host = plan.host
    sizes: list[tuple[int | None, ...]] = [
        (d.free, d.model, d.context, d.compute, *([d.extra] if extra else []), d.margin, d.remaining)
        for _, d in rows]
    sizes.append((host.free, host.model, host.context, host.compute, *([host.extra] if extra else []),
                  host.margin or None, host.remaining))
    marks = {i: "yellow" for i, (_, d) in enumerate(rows) if 0 <= d.remaining < d.free * NEARLY_FULL}
    for decimals, head in ((2, "KV cache"), (0, "KV cache"), (0, "cache")):
        heads = ["MiB", "free", "weights", head, "compute", *(["extra"] if extra else []), "margin", "left"]
        cells = [["" if size is None else in_mib(size, decimals) for size in row] for row in sizes]
        taken = sum(2 + max(len(cell) for cell in column) for column in zip(heads[1:], *cells, strict=True))
        space = style.width - taken
        if space >= max([4, *(len(name.partition(" ")[0]) for name, _ in rows)]):
            break
    names = [_cut(name, space) for name, _ in rows]
    lines = table(heads, [[name, *row] for name, row in zip([*names, "Host"], cells, strict=True)], style,
                  marks=marks)
    for group in groups:
        if len(group) > 1:
            lines += wrap(f"{_range(group)}: {len(group)} identical GPUs, the fullest is shown (-v shows "
                          "each)",
                          style.width)
    if host.free is not None and host.shared + host.growing:
        parts = [f"{human(host.shared)} are the GPU's"] if host.shared else []
        parts += [f"{human(host.growing)} are reserved for the prompt cache and checkpoints"] if host.growing else []
        lines += wrap(f"of Host {listed(parts)}", style.width)
    return [*lines, *_left_out(plan, style)]


def _left_out(plan: Plan, style: Style) -> list[str]:
    """What the system has of the RAM, and that a GPU of which everything is free drives no display."""
    host, empty = plan.host, [device.total == device.free for device in plan.devices]
    parts = []
    if host.free is not None and host.total is not None and host.total > host.free:
        parts.append(f"{human(host.total - host.free)} of {human(host.total)} of RAM are left to the system")
    sized = all(device.description.startswith("hypothetical") for device in plan.devices)
    if empty and all(empty) and not host.shared and not sized:
        parts.append("nothing else is on the GPU, not even a display")
    return wrap("; ".join(parts), style.width) if parts else []


def _groups(devices: Sequence[DeviceRow], verbose: bool) -> list[list[DeviceRow]]:
    """Neighbours that share a row: identical GPUs with the same free memory, or with equal rows."""
    groups: list[list[DeviceRow]] = []
    for device in devices:
        last = groups[-1][-1] if groups else None
        if last is not None and not verbose and (last.description, last.total, last.free,
                                                 bool(last.used)) == \
                (device.description, device.total, device.free, bool(device.used)):
            groups[-1].append(device)
        else:
            groups.append([device])
    return [part for group in groups for part in ([group] if len(group) >= ALIKE
                                                  else [[device] for device in group])]


def _name(group: Sequence[DeviceRow]) -> str:
    return f"{_range(group)} {group[0].description}".strip()


def _range(group: Sequence[DeviceRow]) -> str:
    """CUDA0, or CUDA0-3."""
    first, last = group[0].name, group[-1].name
    return first if first == last else f"{first}-{last[len(last.rstrip('0123456789')):]}"


def _cut(name: str, space: int) -> str:
    """As many of a name's words as fit, at least the first."""
    words = printable(name).split(" ")
    while len(words) > 1 and len(" ".join(words)) > space:
        words.pop()
    return " ".join(words)


def _parts(plan: Plan) -> list[str]:
    """The parts of the margins and of the rest of the breakdown."""
    lines = []
    for group in _groups(plan.devices, False):
        row = group[0]
        if len(row.margin_parts) > 1:
            parts = [f"{part} {human(size)}" for part, size in row.margin_parts if size]
            lines.append(f"margin on {_range(group)}: {', '.join(parts)}")
    extras = plan.breakdown.extras
    for later, words in ((False, "in addition to the model on {}"), (True, "growing during use, on {}")):
        for name in dict.fromkeys(e.device for e in extras if e.upper_limit == later):
            parts = [f"{e.name} {human(e.size)}{'' if e.exact else ' at most'}"
                     for e in extras if (e.upper_limit, e.device) == (later, name)]
            lines.append(f"{words.format(name)}: {', '.join(parts)}")
    return lines
