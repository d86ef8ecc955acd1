"""The answer of the planner: a launch, what it takes on each device, whether it fits, and why it is this one."""

from __future__ import annotations

from ..argument_table import EXPERTS_REGEX, FFN_REGEX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass

    from ..memory.breakdown import Breakdown
    from ..model import Model
    from ..params import Params
    from .reasons import Lever
    from .speed import Speed
else:
    from ..records import dataclass


@dataclass(frozen=True)
class DeviceRow:
    """One device, bytes. `free` is what may be allocated now (or the budget); `margin` is left free of it on purpose."""

    name: str
    description: str
    total: int
    free: int
    margin: int
    margin_parts: tuple[tuple[str, int], ...]
    model: int
    context: int
    compute: int
    beside: int = 0   # what lives beside the model: mmproj, draft model, LoRA

    @property
    def used(self) -> int:
        return self.model + self.context + self.compute + self.beside

    @property
    def remaining(self) -> int:
        """What is left when the margin is kept; negative: by how much it does not fit."""
        return self.free - self.margin - self.used


@dataclass(frozen=True)
class HostRow:
    """System RAM, bytes. `resident` is what must be in RAM at once: weights that are only mapped from the file count
    with the pages that are read, not with their address range. `free` is None where the machine is not here."""

    model: int
    context: int
    compute: int
    beside: int = 0
    resident: int = 0
    margin: int = 0
    free: int | None = None
    total: int | None = None

    @property
    def used(self) -> int:
        return self.model + self.context + self.compute + self.beside

    @property
    def remaining(self) -> int | None:
        """What is left when the margin is kept; negative: it would swap."""
        return None if self.free is None else self.free - self.margin - self.resident


@dataclass(frozen=True)
class Rival:
    """What `llama-server --fit on` would do with the same given flags (memory_static.md 4.3), for comparison."""

    params: Params
    breakdown: Breakdown
    fits: bool
    speed: Speed | None
    placement: str


@dataclass(frozen=True)
class Plan:
    """A launch and its bill.

    >>> plan = autolayers.plan(model, ["-c", "8192"], devices=[gpu])      # doctest: +SKIP
    >>> plan.n_gpu_layers, plan.flags, plan.devices[0].compute            # doctest: +SKIP
    """

    model: Model
    params: Params                 # complete: what was given and what was solved
    breakdown: Breakdown
    devices: tuple[DeviceRow, ...]
    host: HostRow
    fits: bool
    flags: tuple[str, ...]         # llama-server's own words, complete for memory
    placement: str                 # in words: "33 of 33 layers on the GPU"
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    speed: Speed | None = None
    rival: Rival | None = None
    levers: tuple[Lever, ...] = ()

    @property
    def n_gpu_layers(self) -> int:
        """llama.cpp's count: the output layer is the first one offloaded, n_layer + 1 is everything."""
        n = self.params.n_gpu_layers
        return self.n_layer + 1 if n is None or n < 0 else n

    @property
    def n_layer(self) -> int:
        return self.model.hparams.n_layer_all

    @property
    def exact(self) -> bool:
        return self.breakdown.exact

    def to_dict(self) -> dict[str, object]:
        """DESIGN's JSON, schema 1; bytes."""
        from .. import __version__

        model, params, use = self.model, self.params, self.breakdown
        answer: dict[str, object] = {
            "schema": 1,
            "autolayers": __version__,
            "model": {
                "path": model.path, "architecture": model.architecture, "name": model.name, "n_layer": self.n_layer,
                "size": model.size, "n_ctx_train": model.n_ctx_train,
            },
            "launch": {
                "n_gpu_layers": self.n_gpu_layers, "n_ctx": use.n_ctx, "n_ctx_seq": use.n_ctx_seq,
                "n_batch": use.n_batch, "n_ubatch": use.n_ubatch, "n_seq_max": use.n_seq_max,
                "kv_unified": use.kv_unified, "flash_attn": use.flash_attn,
                "cache_type_k": params.cache_type_k or "f16", "cache_type_v": params.cache_type_v or "f16",
                "tensor_split": list(params.tensor_split) if params.tensor_split else None,
                "overrides": [f"{pattern}={buffer}" for pattern, buffer in params.overrides],
            },
            "devices": [
                {
                    "name": d.name, "description": d.description, "total": d.total, "free": d.free,
                    "margin": d.margin, "margin_parts": dict(d.margin_parts), "model": d.model,
                    "context": d.context, "compute": d.compute, "beside": d.beside, "used": d.used,
                    "remaining": d.remaining,
                }
                for d in self.devices
            ],
            "host": {
                "model": self.host.model, "context": self.host.context, "compute": self.host.compute,
                "beside": self.host.beside, "used": self.host.used, "resident": self.host.resident,
                "margin": self.host.margin, "free": self.host.free, "remaining": self.host.remaining,
            },
            "extras": [
                {"name": e.name, "device": e.device, "bytes": e.size, "exact": e.exact, "upper_limit": e.upper_limit}
                for e in use.extras
            ],
            "fits": self.fits,
            "exact": self.exact,
            "placement": self.placement,
            "flags": list(self.flags),
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "levers": [lever.to_dict() for lever in self.levers],
            "speed": self.speed.to_dict() if self.speed else None,
        }
        if self.rival:
            r = self.rival
            answer["fit"] = {
                "placement": r.placement, "n_ctx": r.breakdown.n_ctx, "fits": r.fits,
                "speed": r.speed.to_dict() if r.speed else None,
            }
        return answer


_BLOCK = "blk\\."


def describe(params: Params, everything: int) -> str:
    """Where the layers are, in words."""
    n = params.n_gpu_layers
    n = everything if n is None or n < 0 else min(n, everything)
    text = f"{n} of {everything} layers on the GPU"
    on_host = [pattern for pattern, buffer in params.overrides if buffer == "CPU"]
    experts = [pattern for pattern in on_host if "exps" in pattern]
    ffn = [pattern for pattern in on_host if pattern.endswith(FFN_REGEX)]
    if EXPERTS_REGEX in experts:
        text += ", all experts in RAM"
    elif experts:
        text += f", experts of {sum(map(_layers, experts))} layers in RAM"
    if ffn:
        text += f", FFN weights of {len(ffn)} layers in RAM"
    others = len(params.overrides) - len(experts) - len(ffn)
    if others:
        text += f", {others} more tensor {'rule' if others == 1 else 'rules'}"
    return text


def merged(rules: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The same tensor rules in fewer words: neighbours that differ in the layer alone become one. Those that llama.cpp has a
    flag of its own for (-ncmoe, -ncffn) stay."""
    found: list[tuple[list[str], str, str]] = []
    for pattern, buffer in rules:
        layer, dot, rest = pattern.removeprefix(_BLOCK).partition("\\.")
        one = pattern.startswith(_BLOCK) and layer.isdigit() and dot and dot + rest not in (EXPERTS_REGEX, FFN_REGEX)
        if one and found and found[-1][0] and found[-1][1:] == (rest, buffer):
            found[-1][0].append(layer)
        else:
            found.append(([layer], rest, buffer) if one else ([], pattern, buffer))
    return tuple((rest if not layers else rf"{_BLOCK}{layers[0]}\.{rest}" if len(layers) == 1 else rf"{_BLOCK}({'|'.join(layers)})\.{rest}",
                  buffer) for layers, rest, buffer in found)


def _layers(pattern: str) -> int:
    """How many layers a rule made by `merged` is about."""
    return pattern.partition(")")[0].count("|") + 1 if pattern.startswith(_BLOCK + "(") else 1
