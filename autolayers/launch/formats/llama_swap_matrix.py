"""llama-swap with its matrix: any set of models that fits may be loaded, and what costs least is
evicted (config.example.yaml and config-schema.json of 2026-08-22, section routing)."""

from __future__ import annotations

from ...quoting import yaml
from . import document
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
    kept: Sequence[int] = (),
) -> str:
    """`groups`: the sets of launches, by number, that fit together; `kept`: those that belong to
    each set; `costs`: what it costs to evict each, relative to the others."""
    everything = range(len(launches))
    # A set allows each of its subsets too; a model in no set would run only alone
    sets = groups or ([tuple(everything)] if together else [(i,) for i in everything])
    sets = [(*kept, *members) for members in sets]
    # Nothing makes room for what lies in each set
    stay = set(everything).intersection(*sets)
    notes, file, names = models_of(launches, sized=bool(groups), kept=stay)
    matrix = {
        # Short names for the expressions below, at most 8 characters, e.g. m1: "qwen3-8b"
        "vars": {f"m{i + 1}": yaml(name) for i, name in enumerate(names)},
        # llama-swap chooses the set with the smallest sum of evict_costs of the models that it must
        # end; 1 is the default
        "evict_costs": {f"m{i + 1}": cost for i, cost in enumerate(costs) if cost > 1} or None,
        # e.g. set1: "m1 & m3": both at the same time
        "sets": {
            f"set{number}": yaml(" & ".join(f"m{i + 1}" for i in members))
            for number, members in enumerate(sets, 1)
        },
    }
    file["routing"] = {"router": {"use": "matrix", "settings": {"matrix": matrix}}}
    return document.write(file, notes=notes)
