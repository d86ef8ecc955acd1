"""LLMKube: a Model and an InferenceService of inference.llmkube.dev/v1alpha1 (api/v1alpha1 of
2026-08-22). The operator reads typed fields for its quotas and its status, and writes their words
before extraArgs, which win."""

from __future__ import annotations

import re

from ...errors import UsageError
from ...quoting import container_argument, yaml
from ...tables import listed
from .kubernetes import gpumem_of, label
from .launch_file import LaunchFile, own_gpus, paths_in, words_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...flags.parse import Item
    from ...planner.plan import DeviceRow

# The schema's enum of cacheTypeK and cacheTypeV
_CACHE_TYPES = frozenset(listed("f16 f32 q8_0 q4_0 q4_1 q5_0 q5_1 iq4_nl"))
# numbers: the field, and the least and the most that its schema admits
_NUMBERS = {
    "-c": ("contextSize", 128, 2097152),
    "-np": ("parallelSlots", 1, 64),
    "-b": ("batchSize", 1, 16384),
    "-ub": ("uBatchSize", 1, 1 << 31),
    "-ncmoe": ("moeCPULayers", 1, 1 << 31),
}
_TYPES = {"-ctk": "cacheTypeK", "-ctv": "cacheTypeV"}
_SWITCHES = {"-cmoe": "moeCPUOffload", "-nkvo": "noKvOffload", "--no-warmup": "noWarmup"}


def write(launch: LaunchFile, name: str = "", node: str = "") -> str:
    """Return both resources, of the launch's or this name; paths are those of the node, of any or
    this one."""
    name = label(name or launch.name, 60)
    launch.refuse_unreached("llmkube")
    gpus = own_gpus(launch.plan)
    lines = [
        *launch.comments("the Secret llama-server"),
        "apiVersion: inference.llmkube.dev/v1alpha1",
        "kind: Model",
        "metadata:",
        f"  name: {name}",
        "spec:",
        f"  source: {yaml(_source(launch))}",
        # The operator gets the file by `source` and starts llama-server with its path
        "  format: gguf",
    ]
    layers = launch.plan.n_gpu_layers
    if gpus:
        accelerator, runtime = launch.reach.backend.llmkube or ("", "")
        if not launch.reach.vendor:
            launch.warnings.append("whose GPU it is was not said: vendor amd is a guess")
        lines += [
            "  hardware:",
            f"    accelerator: {accelerator}",
            "    gpu:",
            "      enabled: true",
            f"      count: {len(gpus)}",
            f"      vendor: {launch.reach.vendor or 'amd'}",
            *([f"      runtime: {runtime}"] if runtime else []),
            # --n-gpu-layers. 0 is not a number of layers there:
            # it becomes 99, so -ngl 0 stays a word
            f"      layers: {layers or -1}",
            # What its GPU quota counts
            f"      memory: {gpumem_of(gpus)}Mi",
        ]
        # The layers of each GPU, where each has a run of them; -ts in extraArgs says it
        # exactly
        # The device of each repeating layer, in order, e.g. ["CUDA0", "CUDA0", "CUDA1"]
        where = [row.device for row in launch.plan.layers if row.name.isdecimal()]
        # The first and last place of a name.
        runs = [
            (where.index(row.name), len(where) - 1 - where[::-1].index(row.name))
            for row in gpus
            if row.name in where
        ]
        whole = launch.params.split_mode in (None, "layer") and 2 <= len(gpus) == len(runs)
        # Where layers of another device lie between, no "0-17" can say it
        if whole and all(len(set(where[first : last + 1])) == 1 for first, last in runs):
            lines += [
                "      sharding:",
                "        strategy: layer",
                "        layerSplit:",
                *(f'          - "{first}-{last}"' for first, last in runs),
            ]
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
    # A fleet's plan belongs to one machine
    lines += ["  nodeSelector:", f"    kubernetes.io/hostname: {yaml(node)}"] if node else []
    # The operator takes hostMemory where the pod's memory, its request and its limit, is given too
    memory = f"{launch.limit or launch.request}Mi"
    lines += ["  resources:"]
    lines += [f"    gpu: {len(gpus)}", f"    hostMemory: {memory}"] if gpus else []
    lines += [] if gpus else [f"    memory: {memory}"]
    lines += [f"  containerPort: {int(launch.port)}"] if launch.arguments.value("--port") else []
    # The operator writes --model and --port itself
    given = launch.without("-m", "-hf", "-hff", "-mu", "-dr", "--port")
    fields, rest = _typed(given, gpus)
    # `layers` says it
    if gpus and layers and rest and rest[0].words == ("-ngl", str(layers)):
        rest = rest[1:]
    lines += fields
    lines += ["  env:"] if launch.secrets else []
    for secret in launch.secrets:
        # Not optional: a pod does not start without it
        key = f"{{name: llama-server, key: {secret}}}"
        lines += [f"    - name: {secret}", f"      valueFrom: {{secretKeyRef: {key}}}"]
    for path, _ in paths_in(rest):
        launch.warnings.append(f"LLMKube's pod does not mount {path}")
    return (
        "\n".join([*lines, *_listed("extraArgs", map(container_argument, words_of(rest)))]) + "\n"
    )


def _typed(given: Sequence[Item], gpus: Sequence[DeviceRow]) -> tuple[list[str], list[Item]]:
    """Return the lines of the fields that words have, and the words that have none. A word that is
    given twice, or that the schema does not admit, stays a word."""
    names = [item.canonical for item in given]
    lines: list[str] = []
    rest: list[Item] = []
    overrides: list[str] = []
    # the operator writes the experts' words before the overrides, and the first that matches counts
    ordered = "-ot" not in names or not {"-cmoe", "-ncmoe"} & set(names[names.index("-ot") :])
    for item, name in zip(given, names, strict=True):
        line, value = "", item.value or ""
        # A field holds one value; the words' order would be lost if one of two became a field
        if names.count(name) == 1 and (ordered or "cmoe" not in name):
            # The line of a typed field; "": there is none for this value
            if name in _NUMBERS:
                field, smallest, largest = _NUMBERS[name]
                line = (
                    f"  {field}: {int(value)}"
                    if value.isdecimal() and smallest <= int(value) <= largest
                    else ""
                )
            elif name in _TYPES:
                # bf16 and a fork's types stay words
                line = f"  {_TYPES[name]}: {value}" if value in _CACHE_TYPES else ""
            elif name == "-fa":
                # The operator writes --flash-attn on, where the pod
                # has a GPU; it has no way to say off or auto
                line = "  flashAttention: true" if value == "on" and gpus else ""
            else:
                line = f"  {_SWITCHES[name]}: true" if name in _SWITCHES else ""
        if name == "-ot" and ordered:
            overrides.append(value)
        elif line:
            lines.append(line)
        else:
            rest.append(item)
    return [*lines, *_listed("tensorOverrides", map(container_argument, overrides))], rest


def _listed(field: str, values: Iterable[str]) -> list[str]:
    lines = [f"    - {value}" for value in values]
    return [f"  {field}:", *lines] if lines else []


def _source(launch: LaunchFile) -> str:
    """Return the model where the operator gets it. Raises UsageError for a path that its schema
    does not admit."""
    if launch.hub_file:
        repository, file = launch.hub_file
        return f"https://huggingface.co/{repository}/resolve/main/{file}"
    model = launch.model
    if not launch.downloads:
        if re.search(r"\s", model):
            raise UsageError(f"LLMKube admits no blank in a path: rename {model}")
        launch.warnings.append(
            "LLMKube takes a path of the node only below its operator's --allowed-host-path-roots"
        )
    return model
