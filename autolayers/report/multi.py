"""Several models at once, as text."""

from __future__ import annotations

from ..quoting import shell
from ..units import in_mib
from .table import Style, table
from .text import context_words, shortage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..planner.multi import Together
    from ..planner.plan import Plan


def together_text(together: Together, style: Style | None = None, rest: Sequence[str] = ()) -> str:
    """Each model with its flags, and what is left of every device."""
    style = style or Style()
    lines: list[str] = []
    for name, plan in _named(together):
        lines += [f"{style(name, 'bold')}: {plan.placement}, {context_words(plan)}"]
        if not plan.fits:
            lines += [style(f"  does not fit: {shortage(plan)}", "red")]
        lines += [f"  llama-server {shell([*model_words(plan), *plan.flags, *rest])}", ""]
    devices = together.machine.devices
    head = ["MiB", "free", *(name for name, _ in _named(together)), "left"]
    left, rows = together.left(), []
    for device in devices:
        taken = [next(d for d in plan.devices if d.name == device.name) for plan in together.plans]
        rows.append([device.name, in_mib(together.machine.limits[device.name]),
                     *(in_mib(d.used + d.margin if d.used else 0) for d in taken), in_mib(left[device.name])])
    ram, ram_left = together.machine.ram, together.ram_left()
    needs = [plan.host.needed - plan.host.margin for plan in together.plans]
    rows.append(["Host", "" if ram is None else in_mib(ram), *map(in_mib, needs),
                 "" if ram_left is None else in_mib(ram_left)])
    lines += [*table(head, rows, style), "", style("all fit together", "green") if together.fits
              else style("they do not fit together", "red")]
    warnings = dict.fromkeys(warning for plan in together.plans for warning in plan.warnings)
    return "\n".join([*(style(f"! {warning}", "yellow") for warning in warnings), *lines]) + "\n"


def model_words(plan: Plan) -> list[str]:
    """The words that name a plan's model: -m FILE, or what llama-server has for one that is elsewhere."""
    from ..flags.params import Params
    from ..flags.write import to_words

    return to_words(Params(model=plan.model.path))


def _named(together: Together) -> Iterator[tuple[str, Plan]]:
    """Plans under names that differ: the file's, with a number where two are the same."""
    seen: dict[str, int] = {}
    for plan in together.plans:
        name = plan.model.path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gguf")
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}-{seen[name]}"), plan
