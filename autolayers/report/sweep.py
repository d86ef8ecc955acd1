"""A sweep, row by row as it is known: a table, bars, or CSV."""

from __future__ import annotations

from ..quoting import printable, shell
from ..tables import listed
from ..units import GiB
from .table import Style, wrap
from .text import tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.compare.sweep import Case, Point
    from ..planner.plan import Plan

# columns of the table: name and width, fixed because rows are printed before all of them are known
_COLUMNS = (
    ("context", 7),
    ("cache", 6),
    ("fits", 4),
    ("layers", 7),
    ("GPU GiB", 7),
    ("margin", 6),
    ("RAM GiB", 7),
    ("t/s*", 6),
    ("full*", 6),
)
_FLAGS = 60  # columns that most launches' flags have
_LEFT = ("cache",)
# columns; below it the layers give way to the bar
_LEAST_BAR = 16

FIELDS = listed(
    "model machine context cache_type fits n_gpu_layers n_layer device_bytes margin_bytes "
    "ram_bytes prompt_tokens_per_second tokens_per_second tokens_per_second_full_context flags"
)


def title(point: Point, style: Style) -> str:
    """Return the model and the machine of the next rows."""
    name = point.model.path.replace("\\", "/").rsplit("/", 1)[-1]
    return f"{style(name, 'bold')} on {printable(point.machine)}"


class SweepTable:
    """A line per case, with its flags after it or, if they are too long, below it."""

    notes = "* tokens per second, predicted, not measured: with an empty and with a full context"

    def __init__(self, style: Style) -> None:
        self.style = style
        # On a narrower terminal the margin is left out, and gaps are one blank
        columns = sum(width + 2 for _, width in _COLUMNS) - 2
        wide = columns <= style.width
        self.beside = style.width - columns >= _FLAGS
        self.gap = "  " if wide else " "
        self.columns = [column for column in _COLUMNS if wide or column[0] != "margin"]

    def head(self) -> str:
        return self.style(self._line({name: name for name, _ in self.columns}), "dim")

    def row(self, point: Point) -> str:
        plan = point.plan
        cells = {"context": str(point.n_ctx), "cache": point.cache_type, "fits": "no"}
        if plan is None:
            refusal = wrap(f"refused: {point.refusal}", self.style.width, "  ", "    ")
            return "\n".join([self._line(cells), *refusal])
        cells |= {
            "fits": "yes" if plan.fits else "no",
            "layers": f"{plan.n_gpu_layers}/{plan.n_layer + 1}",
            "GPU GiB": f"{_used(plan) / GiB:.1f}",
            "margin": f"{sum(d.margin for d in plan.devices) / GiB:.1f}",
            "RAM GiB": f"{plan.host.resident / GiB:.1f}",
            "t/s*": tokens(plan.speed.generation),
            "full*": tokens(plan.speed.generation_full),
        }
        line, flags = self._line(cells), shell(plan.flags)
        # Below each row, or after each where most flags have room
        together = self.beside and len(line) + 2 + len(flags) <= self.style.width
        gap = "  " if together else "\n    "
        shown = line if plan.fits else self.style(line, "red")
        return f"{shown}{gap}{flags}"

    def _line(self, cells: dict[str, str]) -> str:
        texts = [
            f"{cells.get(name, ''):{'<' if name in _LEFT else '>'}{width}}"
            for name, width in self.columns
        ]
        return self.gap.join(texts).rstrip()


class SweepBars:
    """Device memory as bars on one scale for all machines, with RAM and speed as numbers."""

    notes = (
        "# weights, = KV cache, + compute, | free memory; GPU + RAM GiB; tokens per second are "
        "predicted"
    )

    def __init__(self, style: Style, cases: Sequence[Case]) -> None:
        self.style = style
        # All bars have one scale: the largest machine's memory is the full width
        self.most = max([sum(case.machine.limits.values()) for case in cases], default=0) or 1
        self.width = style.width - 55
        self.layers = self.width >= _LEAST_BAR
        if not self.layers:
            self.width += 9

    def head(self) -> str:
        return ""

    def row(self, point: Point) -> str:
        plan = point.plan
        start = f"{point.n_ctx:>7} {point.cache_type:<6} "
        if plan is None:
            return "\n".join(wrap(f"refused: {point.refusal}", self.style.width, start, "    "))
        # The parts of the devices' memory, and a mark where this machine's ends
        bar, end = "", 0
        for mark, part in zip("#=+", ("model", "context", "compute"), strict=True):
            # By the running sum, so that rounding does not add up
            end += sum(getattr(device, part) for device in plan.devices)
            bar += mark * (self._column(end) - len(bar))
        bar = bar.ljust(self.width)
        # More than the largest machine has
        if len(bar) > self.width:
            bar = f"{bar[: self.width - 1]}>"
        limit = self._column(sum(d.free for d in plan.devices))
        sizes = f"{_used(plan) / GiB:>6.1f} + {plan.host.resident / GiB:>6.1f} GiB"
        rate = f"{tokens(plan.speed.generation):>6} t/s"
        line = f"{start}{bar[:limit]}|{bar[limit + 1 :]} {sizes} {rate}"
        if self.layers:
            line += f" {plan.n_gpu_layers}/{plan.n_layer + 1}".rjust(9)
        return line if plan.fits else self.style(line, "red")

    def _column(self, size: int) -> int:
        """Return the column of a bar at which this number of bytes ends."""
        return round(size / self.most * (self.width - 1))


def fields(point: Point) -> list[object]:
    """Return a CSV row with the columns FIELDS; sizes in bytes."""
    start: list[object] = [point.model.path, point.machine, point.n_ctx, point.cache_type]
    plan = point.plan
    if plan is None:
        # The reason stands in the last column, where others have their flags
        return [*start, "refused", *[""] * (len(FIELDS) - 6), point.refusal]
    speed = plan.speed
    return [
        *start,
        "yes" if plan.fits else "no",
        plan.n_gpu_layers,
        plan.n_layer,
        _used(plan),
        sum(d.margin for d in plan.devices),
        plan.host.resident,
        round(speed.prompt, 1),
        round(speed.generation, 3),
        round(speed.generation_full, 3),
        shell(plan.flags),
    ]


def _used(plan: Plan) -> int:
    return sum(d.used for d in plan.devices)
