"""A plan for people: one table, the flags, and why."""

from __future__ import annotations

from ..quoting import printable, shell
from ..units import human, in_mib
from .table import Style, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.cost import Speed
    from ..planner.plan import Plan


def plan_text(plan: Plan, style: Style | None = None, rest: Sequence[str] = ()) -> str:
    """The whole answer as text; `rest` are the user's words that do not touch memory, kept behind the flags."""
    style = style or Style()
    model, use = plan.model, plan.breakdown
    lines = [
        f"{style(model.name, 'bold')}  {model.architecture}, {plan.n_layer} layers, {human(model.size)}",
        f"{plan.placement}, {context_words(plan)}",
        "",
        *_memory(plan, style),
        "",
    ]
    lines += speed_words(plan.speed)
    if plan.fit_choice:
        rival = plan.fit_choice
        speed = f", {rival.speed.generation:.1f} tokens/s and prompts {rival.speed.prompt:.0f} predicted"
        lines += [f"--fit would choose: {rival.placement}, context {rival.breakdown.n_ctx}{speed}"
                  + ("" if rival.fits else ", which breaks these margins")]
    lines.append("")
    lines += [f"- {printable(reason)}" for reason in plan.reasons]
    for device in plan.devices:
        if len(device.margin_parts) > 1:
            parts = [f"{name} {human(size)}" for name, size in device.margin_parts if size]
            lines.append(f"- margin on {device.name}: {', '.join(parts)}")
    for later, words in ((False, "in addition to the model on {}"), (True, "growing while it serves, on {}")):
        for name in dict.fromkeys(e.device for e in use.extras if e.upper_limit == later):
            parts = [f"{e.name} {human(e.size)}{'' if e.exact else ' at most'}"
                     for e in use.extras if (e.upper_limit, e.device) == (later, name)]
            lines.append(f"- {words.format(name)}: {', '.join(parts)}")
    lines += [style(f"! {warning}", "yellow") for warning in plan.warnings]
    if not plan.exact:
        lines.append(style("! sizes are upper bounds, not exact", "yellow"))
    verdict = style(fits_words(plan), "green") if plan.fits else style("does not fit: " + shortage(plan), "red")
    return "\n".join([*lines, *([""] if lines[-1] else []), f"{verdict}", shell([*plan.flags, *rest])]) + "\n"


def context_words(plan: Plan) -> str:
    use = plan.breakdown
    text = f"context {use.n_ctx}"
    if use.n_seq_max > 1:
        shared = f" shared by {use.n_seq_max} slots"
        text += shared if use.kv_unified else f" ({use.n_seq_max} slots of {use.n_ctx_seq})"
    kinds = {plan.params.cache_type_k or "f16", plan.params.cache_type_v or "f16"}
    return text + ("" if kinds == {"f16"} else f", {'/'.join(sorted(kinds))} cache")


def speed_words(speed: Speed) -> list[str]:
    """The prediction for the workload, and how sure it is."""
    work = speed.workload
    asked = f"{work.prompt} tokens of prompt, {work.generate} of answer"
    asked += f" behind {work.depth}" if work.depth else ""
    asked += f", {work.requests} requests at once" if work.requests > 1 else ""
    name = f"{work.name}: " if work.name else ""
    return [
        f"predicted, not measured: {tokens(speed.generation)} tokens/s (within x{speed.generation_spread:.2f}), "
        f"{tokens(speed.generation_full)} with a full context; "
        f"prompts {tokens(speed.prompt)} (within x{speed.prompt_spread:.2f})",
        f"for {name}{asked}: {speed.request:.1f} s"]


def tokens(rate: float) -> str:
    """Tokens per second in three figures."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"


def fits_words(plan: Plan) -> str:
    """The verdict on a plan that fits; where the system memory is not known, how much of it is needed."""
    if plan.host.free is not None:
        return "fits"
    return f"fits where {human(plan.host.needed)} of RAM are available (--ram SIZE checks it)"


def shortage(plan: Plan) -> str:
    """What is missing where, in words."""
    parts = [f"{human(-d.remaining)} missing on {d.name}" for d in plan.devices if d.used and d.remaining < 0]
    if plan.host.remaining is not None and plan.host.remaining < 0:
        parts.append(f"{human(-plan.host.remaining)} missing in RAM")
    return ", ".join(parts) or "no placement fits"


def _memory(plan: Plan, style: Style) -> list[str]:
    extra = any(d.extra for d in plan.devices)
    head = ["MiB", "free", "weights", "KV cache", "compute", *(["extra"] if extra else []), "margin", "left"]
    rows = []
    for d in plan.devices:
        name = f"{d.name} {d.description}".strip()
        sizes = (d.free, d.model, d.context, d.compute, *([d.extra] if extra else []), d.margin, d.remaining)
        rows.append([name if len(name) < 40 else name[:37] + "...", *map(in_mib, sizes)])
    h = plan.host
    host = (h.free, h.model, h.context, h.compute, *([h.extra] if extra else []), h.margin or None, h.remaining)
    rows.append(["Host", *("" if size is None else in_mib(size) for size in host)])
    return table(head, rows, style)
