"""Several models at once, as text."""

from __future__ import annotations

from ..flags.params import Params
from ..flags.write import to_words
from ..quoting import printable, shell
from ..units import in_mib
from .table import PLAIN, Style, blocks, warned, wrap
from .text import context_words, listed, shortage, tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..planner.plan import Plan
    from ..planner.several.groups import Groups
    from ..planner.several.multi import Together


_SLOWER = 1.02  # a request that is slower than alone by this factor is shown with both times


def together_text(together: Together, style: Style = PLAIN, rest: Sequence[str] = ()) -> str:
    """Return each model with its flags, and its memory on every device; laid out for the terminal's
    width."""
    lines: list[str] = []
    for i, (name, plan) in enumerate(_named(together)):
        inputs, speed, alone = plan.inputs, plan.speed, together.alone
        rate = f"{tokens(speed.generation)} tokens/s, {speed.request:.1f} s per request"
        if inputs is not None:
            rate = f"{tokens(inputs.per_second)} inputs/s of {inputs.tokens} tokens"
        # By what the other models take away
        elif alone and speed.request > alone[i] * _SLOWER:
            rate += f" (alone {alone[i]:.1f} s)"
        text = f"{plan.placement}, {context_words(plan)}, {rate}"
        lines += [style(name, "bold"), *wrap(text, style.width, "  ", "    ")]
        if not plan.fits:
            lines += style.wrapped(f"does not fit: {shortage(plan)}", "red", "  ", "    ")
        # A whole command for each, to be copied
        lines += [f"  llama-server {shell([*model_words(plan), *plan.flags, *rest])}", ""]
    lines += [*_bill(together, style), ""]
    for text in _sharing(together):
        lines += wrap(text, style.width, "- ", "  ")
    for warning in of_models(together.plans, [plan.warnings for plan in together.plans]):
        lines += warned(warning, style.width)
    # A group of one model, of --swap
    one = len(together.plans) == 1
    if together.fits:
        lines.append(style("fits" if one else "all fit together", "bold"))
    else:
        lines.append(style("does not fit" if one else "they do not fit together", "red"))
    if not together.fits and not one:
        lines += wrap("--swap plans them in turns, in groups that fit", style.width)
    return "\n".join(lines) + "\n"


def groups_text(groups: Groups, style: Style = PLAIN, rest: Sequence[str] = ()) -> str:
    """Return each group of models that fit together, as in together_text."""
    count = len(groups.groups)
    parts = []
    if groups.stay:
        text = together_text(groups.stay, style, rest)
        parts.append(style("loaded all the time", "bold") + "\n\n" + text)
    for number, group in enumerate(groups.groups, 1):
        size = len(group.plans)
        what = f"{size} models together" if size > 1 else "one model"
        parts.append(
            style(f"group {number} of {count}: {what}", "bold")
            + "\n\n"
            + together_text(group, style, rest)
        )
    return "\n".join(parts)


def of_models(plans: Sequence[Plan], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the plans' warnings, each line once; with the model's path if not all plans have
    it."""
    # What is true of the machine is said once, what is true of a model with its name
    common = [line for line in lines[0] if all(line in own for own in lines)]
    named = [
        line if printable(plan.model.path) in line else f"{printable(plan.model.path)}: {line}"
        for plan, own in zip(plans, lines, strict=True)
        for line in own
        if line not in common
    ]
    return list(dict.fromkeys((*common, *named)))


def _sharing(together: Together) -> Iterator[str]:
    """Yield the models that share a device, and what each costs the others."""
    names = [name for name, _ in _named(together)]
    for device, users in together.users().items():
        if len(users) > 1:
            yield f"{device} is shared by {listed([names[i] for i in users])}"
    if not together.costs:
        return
    for name, costs in zip(names, together.costs, strict=True):
        others = [
            f"{other} {seconds:.1f} s"
            for other, seconds in zip(names, costs, strict=True)
            # Less is 0.0 s
            if seconds >= 0.05
        ]
        if others:
            yield f"without {name} a request would be faster: {listed(others)}"
    weighted = any(weight != 1 for weight in together.weights)
    times = ", ".join(
        f"{weight:g} of {name}" for name, weight in zip(names, together.weights, strict=True)
    )
    requests = f"requests, {times}" if weighted else "a request of each"
    proven = "optimum" if together.proven else "best found"
    yield f"{requests}: {together.seconds:.1f} s, the {proven} by prediction"


def _bill(together: Together, style: Style) -> list[str]:
    """Return each model's memory with its margins, and the rest, MiB."""
    machine, left, ram_left = together.machine, together.left(), together.ram_left()
    # Columns: all devices, also those without a model
    names = [device.name for device in machine.devices]

    def row(title: str, sizes: Mapping[str, int], ram: int | None) -> list[str]:
        return [title, *(in_mib(sizes[name]) for name in names), "" if ram is None else in_mib(ram)]

    rows = [row("free", machine.limits, machine.ram)]
    for title, plan in _named(together):
        taken = {
            device.name: device.used + device.margin if device.used else 0
            for device in plan.devices
        }
        # The margin is the machine's, not each model's
        rows.append(row(title, taken, plan.host.needed - plan.host.margin))
    rows.append(row("left", left, ram_left))
    # blocks() repeats the names in each table: they must leave room for one column
    column = max(len(cell) for row in rows for cell in row[1:])
    for cells in rows:
        name, space = printable(cells[0]), style.width - 2 - column
        # Shortened in the middle: names often differ at their ends
        half = (space - 2) // 2
        cells[0] = name if len(name) <= space else f"{name[: space - 2 - half]}..{name[-half:]}"
    return blocks(["MiB", *names, "Host"], rows, style)


def model_words(plan: Plan) -> list[str]:
    """Return llama-server's flags for a plan's model: -m FILE, or its flags for a remote one."""
    return to_words(Params(model=plan.model.path))


def _named(together: Together) -> Iterator[tuple[str, Plan]]:
    """Yield the plans under distinct names: the file's, numbered if two are the same."""
    seen: dict[str, int] = {}
    for plan in together.plans:
        name = plan.model.path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gguf")
        seen[name] = seen.get(name, 0) + 1
        # Folders may hold files of the same name
        yield (name if seen[name] == 1 else f"{name}-{seen[name]}"), plan
