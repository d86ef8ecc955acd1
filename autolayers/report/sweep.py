"""A sweep as tables and as bars."""

from __future__ import annotations

from ..units import GiB, in_mib
from .table import Style, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.plan import Plan
    from ..planner.sweep import Point

_WIDTH = 48
_HEAD = ("context", "cache", "fits", "layers", "GPU MiB", "host MiB", "tokens/s*", "flags")


def sweep_text(points: Sequence[Point], style: Style | None = None) -> str:
    """One table per model and machine: a line per context and cache type."""
    style = style or Style()
    blocks = []
    for (name, machine), group in _groups(points).items():
        rows = []
        for point in group:
            plan = point.plan
            if plan is None:
                rows.append([str(point.n_ctx), point.cache_type, "refused", "", "", "", "", point.refusal[:60]])
                continue
            used = sum(d.used for d in plan.devices)
            speed = plan.speed
            rows.append([
                str(point.n_ctx), point.cache_type, "yes" if plan.fits else "no",
                f"{plan.n_gpu_layers}/{plan.n_layer + 1}", in_mib(used, 0), in_mib(plan.host.used, 0),
                f"{speed.generation:.1f}" if speed else "", " ".join(plan.flags)[:100]])
        lines = table(_HEAD, rows, style, left=(0, 1, 7))
        blocks.append("\n".join([f"{style(name, 'bold')} on {machine}", *lines]))
    return "\n\n".join(blocks) + "\n\n* predicted, not measured\n"


def bars(points: Sequence[Point], style: Style | None = None) -> str:
    """Device memory by context as bars: # weights, = KV cache, - compute, | free memory."""
    style = style or Style()
    blocks = []
    for (name, machine), group in _groups(points).items():
        plans = [(point, point.plan) for point in group if point.plan is not None]
        most = max((max(_used(plan), _free(plan)) for _, plan in plans), default=1) or 1
        lines = [f"{style(name, 'bold')} on {machine}: # weights, = KV cache, - compute, | free memory"]
        for point, plan in plans:
            parts = [sum(getattr(d, part) for d in plan.devices) for part in ("model", "context", "compute")]
            bar, end = "", 0
            for mark, size in zip("#=-", parts, strict=True):
                end += size
                bar += mark * (round(end / most * _WIDTH) - len(bar))
            at = round(_free(plan) / most * _WIDTH)
            bar = bar.ljust(_WIDTH + 1)
            bar = bar[:at] + "|" + bar[at + 1:]
            shown = (f"{point.n_ctx:>8} {point.cache_type:<5} {bar} {end / GiB:7.2f} GiB, "
                     f"{plan.n_gpu_layers}/{plan.n_layer + 1} layers")
            lines.append(shown if plan.fits else style(shown, "red"))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _groups(points: Sequence[Point]) -> dict[tuple[str, str], list[Point]]:
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.model.path.rsplit("/", 1)[-1], point.machine), []).append(point)
    return groups


def _used(plan: Plan) -> int:
    return sum(d.used for d in plan.devices)


def _free(plan: Plan) -> int:
    return sum(d.free for d in plan.devices)
