"""llama-swap with its matrix: any set of models that fits may be loaded, and what costs least is
evicted (config.example.yaml and config-schema.json of 2026-08-22, section routing)."""

from __future__ import annotations

from ...quoting import yaml
from . import document
from .launch_file import ALONE, LaunchFile, SharedMemory
from .llama_swap import models_of


def write(*launches: LaunchFile, sharing: SharedMemory = ALONE) -> str:
    """Each set of models that fits together may be loaded at once, with those that are kept."""
    everything = range(len(launches))
    # A set allows each of its subsets too; a model in no set would run only alone
    sets = sharing.groups or (
        [tuple(everything)] if sharing.together else [(i,) for i in everything]
    )
    sets = [(*sharing.kept, *members) for members in sets]
    # Nothing makes room for what lies in each set
    stay = set(everything).intersection(*sets)
    notes, file, names = models_of(launches, sized=bool(sharing.groups), kept=stay)
    matrix = {
        # Short names for the expressions below, at most 8 characters, e.g. m1: "qwen3-8b"
        "vars": {f"m{i + 1}": yaml(name) for i, name in enumerate(names)},
        # llama-swap chooses the set with the smallest sum of evict_costs of the models that it must
        # end; 1 is the default
        "evict_costs": {f"m{i + 1}": cost for i, cost in enumerate(sharing.costs) if cost > 1}
        or None,
        # e.g. set1: "m1 & m3": both at the same time
        "sets": {
            f"set{number}": yaml(" & ".join(f"m{i + 1}" for i in members))
            for number, members in enumerate(sets, 1)
        },
    }
    file["routing"] = {"router": {"use": "matrix", "settings": {"matrix": matrix}}}
    return document.write(file, notes=notes)
