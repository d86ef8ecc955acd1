"""A sweep as tables and as bars."""

from __future__ import annotations

from ..quoting import printable, shell
from ..units import GiB, in_mib
from .table import Style, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.plan import Plan
    from ..planner.sweep import Point

_WIDTH = 48
_HEAD = ("context", "cache", "fits", "layers", "GPU MiB", "margin", "host MiB", "tokens/s*", "full*", "flags")


def sweep_text(points: Sequence[Point], style: Style | None = None) -> str:
    """The table of one model on one machine: a line per context and cache type."""
    style = style or Style()
    rows = []
    for point in points:
        plan = point.plan
        if plan is None:
            rows.append([str(point.n_ctx), point.cache_type, "no", "", "", "", "", "", "", f"refused: {point.refusal}"])
            continue
        speed = plan.speed
        rows.append([
            str(point.n_ctx), point.cache_type, "yes" if plan.fits else "no", f"{plan.n_gpu_layers}/{plan.n_layer + 1}",
            in_mib(_used(plan), 0), in_mib(sum(d.margin for d in plan.devices), 0), in_mib(plan.host.used, 0),
            f"{speed.generation:.1f}", f"{speed.generation_full:.1f}", shell(plan.flags)])
    return "\n".join([_title(points[0], style), *table(_HEAD, rows, style, left=(0, 1, 9))]) + "\n"


def bars(points: Sequence[Point], style: Style | None = None) -> str:
    """Device memory by context as bars: # weights, = KV cache, - compute, | free memory."""
    style = style or Style()
    plans = [(point, point.plan) for point in points if point.plan is not None]
    most = max((max(_used(plan), _free(plan)) for _, plan in plans), default=1) or 1
    lines = [_title(points[0], style)]
    for point, plan in plans:
        parts = [sum(getattr(d, part) for d in plan.devices) for part in ("model", "context", "compute")]
        bar, end = "", 0
        for mark, size in zip("#=-", parts, strict=True):
            end += size
            bar += mark * (round(end / most * _WIDTH) - len(bar))
        at = round(_free(plan) / most * _WIDTH)
        bar = bar.ljust(_WIDTH + 1)
        bar = bar[:at] + "|" + bar[at + 1:]
        speed = f", {plan.speed.generation:.1f} tokens/s" if plan.speed else ""
        shown = (f"{point.n_ctx:>8} {point.cache_type:<5} {bar} {end / GiB:7.2f} GiB, "
                 f"{plan.n_gpu_layers}/{plan.n_layer + 1} layers{speed}")
        lines.append(shown if plan.fits else style(shown, "red"))
    return "\n".join(lines) + "\n"


def _title(point: Point, style: Style) -> str:
    name = point.model.path.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{style(name, 'bold')} on {printable(point.machine)}"


def _used(plan: Plan) -> int:
    return sum(d.used for d in plan.devices)


def _free(plan: Plan) -> int:
    return sum(d.free for d in plan.devices)
