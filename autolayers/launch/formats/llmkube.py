"""LLMKube: a Model and an InferenceService of inference.llmkube.dev/v1alpha1 (api/v1alpha1 of
2026-08-22). The operator reads typed fields for its quotas and its status, and writes their words
before extraArgs, which win."""

from __future__ import annotations

import re

from ...flags.parse import items
from ...flags.table import Argument
from ...quoting import container_argument, yaml
from .kubernetes import gpumem_of
from .launch_file import LaunchFile, own_gpus, without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...planner.plan import DeviceRow

_VENDORS = {"CUDA": ("cuda", "nvidia"), "ROCm": ("rocm", "amd"), "Vulkan": ("vulkan", "amd")}
_FILE = re.compile(r"hf:([^/]+/[^/]+)/(.+\.gguf)")
_CACHE_TYPES = frozenset(("f16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"))
# numbers: the field, and the least and the most that its schema admits
_NUMBERS = {
    "-c": ("contextSize", 128, 131072),
    "-np": ("parallelSlots", 1, 64),
    "-b": ("batchSize", 1, 16384),
    "-ub": ("uBatchSize", 1, 1 << 31),
    "-ncmoe": ("moeCPULayers", 1, 1 << 31),
}
_TYPES = {"-ctk": "cacheTypeK", "-ctv": "cacheTypeV"}
_SWITCHES = {"-cmoe": "moeCPUOffload", "-nkvo": "noKvOffload", "--no-warmup": "noWarmup"}


def write(launch: LaunchFile, name: str = "", node: str = "") -> str:
    """Both resources, of the launch's or this name; paths are those of the node, of any or this
    one."""
    name = (
        re.sub(r"[^a-z0-9]+", "-", (name or launch.name).lower()).strip("-")[:60].strip("-")
        or "model"
    )
    gpus = own_gpus(launch.plan)
    lines = [
        *launch.notes,
        *launch.secret_notes("env of the InferenceService"),
        "apiVersion: inference.llmkube.dev/v1alpha1",
        "kind: Model",
        "metadata:",
        f"  name: {name}",
        "spec:",
        f"  source: {yaml(_source(launch.model))}",
        "  format: gguf",
    ]
    layers = launch.plan.n_gpu_layers
    if gpus:
        accelerator, vendor = _VENDORS.get(launch.backend.name, ("cuda", "nvidia"))
        lines += [
            "  hardware:",
            f"    accelerator: {accelerator}",
            "    gpu:",
            "      enabled: true",
            f"      count: {len(gpus)}",
            f"      vendor: {vendor}",
            f"      layers: {layers or -1}",
            f"      memory: {gpumem_of(gpus)}Mi",
        ]
        lines += _sharding(launch, gpus)
    lines += [
        "---",
        "apiVersion: inference.llmkube.dev/v1alpha1",
        "kind: InferenceService",
        "metadata:",
        f"  name: {name}",
        "spec:",
        f"  modelRef: {name}",
        "  replicas: 1",
    ]
    lines += ["  nodeSelector:", f"    kubernetes.io/hostname: {yaml(node)}"] if node else []
    lines += ["  resources:"]
    lines += [f"    gpu: {len(gpus)}"] if gpus else []
    # request and limit of the pod, both; hostMemory is the one that counts where both are given
    lines += [f"    {'hostMemory' if gpus else 'memory'}: {launch.limit or launch.request}Mi"]
    lines += [f"  containerPort: {int(launch.port)}"] if launch.arguments.value("--port") else []
    words = without(launch.words, "-m", "-hf", "-hff", "-mu", "-dr", "--port")
    fields, rest = _typed(words, gpus)
    if gpus and layers and ["-ngl", str(layers)] == rest[:2]:
        rest = rest[2:]
    lines += fields
    return "\n".join([*lines, *_listed("extraArgs", map(container_argument, rest))]) + "\n"


def _typed(words: Sequence[str], gpus: Sequence[DeviceRow]) -> tuple[list[str], list[str]]:
    """The lines of the fields that words have, and the words that have none. A word that is there
    twice, or that the schema does not admit, stays a word."""
    found = list(items(words))
    names = [item.flag.canonical if isinstance(item.flag, Argument) else "" for item in found]
    lines: list[str] = []
    rest: list[str] = []
    overrides: list[str] = []
    # the operator writes the experts' words before the overrides, and the first that matches counts
    ordered = "-ot" not in names or not {"-cmoe", "-ncmoe"} & set(names[names.index("-ot") :])
    for item, name in zip(found, names, strict=True):
        line = ""
        if names.count(name) == 1 and (ordered or "cmoe" not in name):
            line = _field(name, item.value or "", bool(gpus))
        if name == "-ot" and ordered:
            overrides.append(item.value or "")
        elif line:
            lines.append(line)
        else:
            rest += item.words
    return [*lines, *_listed("tensorOverrides", map(container_argument, overrides))], rest


def _field(name: str, value: str, on_gpu: bool) -> str:
    """The line of a typed field; "": there is none for this value."""
    if name in _NUMBERS:
        field, least, most = _NUMBERS[name]
        return (
            f"  {field}: {int(value)}" if value.isdecimal() and least <= int(value) <= most else ""
        )
    if name in _TYPES:
        return f"  {_TYPES[name]}: {value}" if value in _CACHE_TYPES else ""
    if name == "-fa":
        return "  flashAttention: true" if value == "on" and on_gpu else ""
    return f"  {_SWITCHES[name]}: true" if name in _SWITCHES else ""


def _listed(field: str, values: Iterable[str]) -> list[str]:
    lines = [f"    - {value}" for value in values]
    return [f"  {field}:", *lines] if lines else []


def _sharding(launch: LaunchFile, gpus: Sequence[DeviceRow]) -> list[str]:
    """The layers of each GPU, where each has a run of them; -ts in extraArgs says it exactly."""
    where = [row.device for row in launch.plan.layers if row.name.isdecimal()]
    runs = [
        (where.index(row.name), len(where) - 1 - where[::-1].index(row.name))
        for row in gpus
        if row.name in where
    ]
    whole = all(
        set(where[first : last + 1]) == {row.name}
        for row, (first, last) in zip(gpus, runs, strict=False)
    )
    if (
        len(gpus) < 2
        or len(runs) < len(gpus)
        or not whole
        or launch.params.split_mode not in (None, "layer")
    ):
        return []
    return [
        "      sharding:",
        "        strategy: layer",
        "        layerSplit:",
        *(f'          - "{first}-{last}"' for first, last in runs),
    ]


def _source(model: str) -> str:
    """The model where the operator gets it."""
    file = _FILE.fullmatch(model)
    return f"https://huggingface.co/{file[1]}/resolve/main/{file[2]}" if file else model
