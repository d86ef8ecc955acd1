"""llama-swap with its matrix: any set of models that fits may be loaded, and what costs least is
evicted (config.example.yaml and config-schema.json of 2026-08-22, section routing)."""

from __future__ import annotations

from ...quoting import yaml
from .launch_file import LaunchFile
from .llama_swap import models_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def write(
    *launches: LaunchFile,
    together: bool = False,
    groups: Sequence[Sequence[int]] = (),
    most: int = 0,
    costs: Sequence[int] = (),
) -> str:
    """`groups`: the sets of launches, by number, that fit together; `costs`: what it costs to evict
    each, relative to the others."""
    lines, names = models_of(launches, sized=bool(groups))
    everything = range(len(names))
    sets = groups or ([tuple(everything)] if together else [(i,) for i in everything])
    lines += [
        "routing:",
        "  router:",
        "    use: matrix",
        "    settings:",
        "      matrix:",
        "        vars:",
    ]
    lines += [f"          m{i + 1}: {yaml(name)}" for i, name in enumerate(names)]
    dear = [f"          m{i + 1}: {cost}" for i, cost in enumerate(costs) if cost > 1]
    if dear:
        lines += ["        evict_costs:", *dear]
    lines.append("        sets:")
    for number, members in enumerate(sets, 1):
        lines.append(f"          set{number}: {yaml(' & '.join(f'm{i + 1}' for i in members))}")
    return "\n".join(lines) + "\n"
