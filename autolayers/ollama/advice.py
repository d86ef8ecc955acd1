"""What to set in Ollama: num_gpu, num_ctx and num_batch from a plan made with Ollama's own settings, or why not to.

Since Ollama 0.30 every GGUF runs in llama-server, so that num_gpu is -ngl: it counts the output layer. Setting it
switches llama.cpp's --fit off, which for some models costs more than it brings; then `num_gpu` is None and `notes` say
why.
"""

from __future__ import annotations

import re

from ..errors import LaunchRefused
from ..flags.params import FIT_PARAMS_TARGET
from ..records import dataclass, replace
from ..units import MiB, human
from . import settings as rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..devices import Device, Host
    from ..planner import Plan
    from .settings import Settings
    from .target import Target

    Planner = Callable[..., Plan]

# LLAMA_ARG_* that move weights; whatever else a plan says Ollama passes itself.
_PLACEMENT = ("-ngl", "-ncmoe", "-cmoe", "-ncffn", "-ot", "-ts", "-sm")
_EXPERTS = "LLAMA_ARG_N_CPU_MOE"
_PART_OF_A_LAYER = re.compile(r"blk\\\.\d+\\\.ffn_\([a-z_|]+\)_\(ch\|\)exps=CPU")
_OLD = (0, 30)   # before: engines of its own, which estimate the layers themselves


@dataclass(frozen=True)
class Advice:
    """`num_gpu` None: leave it to Ollama. `num_batch` is the plan's; it is pinned where Ollama might take a larger one
    that costs a layer. `server` are LLAMA_ARG_* settings for `ollama serve`."""

    target: Target
    plan: Plan
    devices: tuple[Device, ...]
    num_gpu: int | None
    everything: int
    num_ctx: int
    num_batch: int
    pin_batch: bool
    parallel: int
    notes: tuple[str, ...] = ()
    server: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, int]:
        """What to write into a Modelfile."""
        found = {} if self.num_gpu is None else {"num_gpu": self.num_gpu}
        found["num_ctx"] = self.num_ctx
        if self.pin_batch:
            found["num_batch"] = self.num_batch
        return found

    def over(self, existing: Mapping[str, object]) -> dict[str, int]:
        """The parameters that replace these: a num_gpu that should not be there becomes -1, Ollama's word for auto."""
        if self.num_gpu is None and "num_gpu" in existing:
            return {"num_gpu": -1, **self.parameters}
        return self.parameters

    @property
    def summary(self) -> list[str]:
        """The plan in a few lines."""
        name = self.target.model.name
        count = "left to Ollama" if self.num_gpu is None else f"{self.num_gpu} of {self.everything}"
        batch = f", num_batch {self.num_batch}" + ("" if self.pin_batch else " (Ollama's own choice)")
        lines = [f"{name}: num_gpu {count}, num_ctx {self.num_ctx}{batch}"]
        if self.parallel > 1:
            lines[0] += f", {self.parallel} slots"
        if self.server and self.num_gpu is None:
            lines.append("with the server's settings below:")
        for row in self.plan.devices:
            lines.append(f"{row.name}: weights {human(row.model)}, KV cache {human(row.context)}, "
                         f"compute {human(row.compute)}"
                         + (f", extra {human(row.extra)}" if row.extra else "")
                         + f", margin {human(row.margin)}, left {human(row.remaining)} of {human(row.free)}")
        host = self.plan.host
        lines.append(f"RAM: weights {human(host.model)}, KV cache {human(host.context)}, compute {human(host.compute)}"
                     + (f", extra {human(host.extra)}" if host.extra else ""))
        return lines


def advise(target: Target, settings: Settings, devices: Sequence[Device], host: Host | None = None, *,
           num_ctx: int | str | None = None, num_batch: int | None = None, words: Sequence[str] = (), pin: bool = False,
           version: str = "", explain: bool = True, planner: Planner | None = None) -> Advice:
    """The parameters for a model on these devices.

    `num_ctx` may be "max", the largest that keeps the model wholly on the GPUs; None is the model's own, then the
    server's, then the default by VRAM; likewise `num_batch`. `words` are more flags for the planner. `pin` writes
    num_gpu even where leaving it to Ollama is better, `explain` adds reasons and the comparison with Ollama's own
    choice. Raises what the planner raises, and LaunchRefused for "max" without a GPU.
    """
    question = _Question(target, settings, devices, host, words, planner)
    model, everything = target.model, target.model.n_layer + 1
    slots = question.parallel
    given_batch = num_batch or _whole(target.parameters.get("num_batch"))
    notes = list(target.notes)

    if num_ctx == "max":
        if not devices:
            raise LaunchRefused("the largest num_ctx for a GPU needs a GPU: say which with --gpu SIZE")
        # The smallest batch leaves the most for the context; it is pinned below, as Ollama would take a larger one.
        batch = given_batch or min(rules.BATCH, model.n_ctx_train or rules.BATCH)
        use = list(devices)
        plan = question.ask(None, batch, use)
        fewer = question.visible(plan.breakdown.n_ctx)
        if len(fewer) < len(use):
            use, plan = fewer, question.ask(None, batch, fewer)
        n_ctx = plan.breakdown.n_ctx // slots
        if plan.n_gpu_layers < everything:
            notes.append(f"no num_ctx keeps this model wholly on the GPU; planned for {n_ctx}")
    else:
        wanted = num_ctx if isinstance(num_ctx, int) else _whole(target.parameters.get("num_ctx"))
        n_ctx = rules.default_context(settings, devices) if wanted is None else wanted or model.n_ctx_train
        n_ctx = rules.clamped(n_ctx, model, target.vision)
        if wanted and n_ctx != wanted:
            notes.append(f"num_ctx {wanted} becomes {n_ctx}: Ollama keeps it between "
                         f"{rules.clamped(0, model, target.vision)} and the trained {model.n_ctx_train}")
        use = question.visible(n_ctx * slots)
        batch = given_batch or rules.automatic_batch(model, target.size, n_ctx * slots, use, question.flash)
        plan = question.ask(n_ctx, batch, use)

    more: tuple[str, ...] = ()
    if target.vision and use and plan.n_gpu_layers < everything:
        # An explicit partial num_gpu sends the projector to the CPU; without it more layers fit, but never all.
        more = ("--no-mmproj-offload",)
        if question.ask(n_ctx, batch, use, more).n_gpu_layers >= everything:
            more = (*more, "-ngl", str(everything - 1))
    plan = question.ask(n_ctx, batch, use, more)
    partial = bool(use) and plan.n_gpu_layers < everything
    left = partial and model.is_moe and not pin
    num_gpu = None if left else plan.n_gpu_layers
    server = _server_settings(question.ask(n_ctx, batch, use, layers=False)) if partial and model.is_moe else []
    if explain or left:
        plan = question.ask(n_ctx, batch, use, () if left else more, layers=not left, explain=explain)

    if server:
        notes += _about_experts(plan, left, pin)
    elif more and num_gpu:
        notes.append(f"num_gpu {num_gpu} sends the projector to the CPU, as any partial num_gpu does; without num_gpu "
                     "Ollama keeps it on the GPU at the price of layers")
    elif partial and len(use) == 1 and plan.fit_choice is not None and plan.fit_choice.fits:
        own = plan.fit_choice.params.n_gpu_layers or 0
        if own >= plan.n_gpu_layers and not plan.fit_choice.params.overrides:
            notes.append(f"Ollama's own choice would be {own} layers as well: num_gpu only pins it")
    if partial and num_ctx != "max":
        notes += question.larger_context(batch, use, everything)

    pin_batch = num_batch is not None or "num_batch" in target.parameters
    if not pin_batch and use:
        largest = rules.automatic_batch(model, 0, n_ctx * slots, (), question.flash)
        pin_batch = largest > batch and question.ask(n_ctx, largest, use).n_gpu_layers < plan.n_gpu_layers
        pin_batch = pin_batch or (num_ctx == "max" and largest > batch)
    others = (*target.projectors, *target.adapters, *filter(None, (target.draft,)))
    if others and not plan.breakdown.extras:
        notes.append(f"the memory of {', '.join(others)} is not in these numbers")
    notes += _about_settings(settings, devices, use, num_gpu, version)
    return Advice(target, plan, tuple(use), num_gpu, everything, n_ctx, batch, pin_batch, slots,
                  tuple(dict.fromkeys((*notes, *plan.warnings))), tuple(server))


def _about_experts(plan: Plan, left: bool, pin: bool) -> list[str]:
    """A mixture of experts that does not fit; `left`: num_gpu is left to llama.cpp."""
    notes = ["a mixture of experts that does not fit: without num_gpu llama.cpp keeps all layers on the GPU and moves "
             "experts alone to RAM, which is faster" + ("" if pin else ", so num_gpu is not set (--pin sets it)")]
    if left:
        margins = ",".join(str(-(-row.margin // MiB)) for row in plan.devices)
        notes.append(f"LLAMA_ARG_FIT_TARGET={margins} on the server makes llama.cpp leave that many MiB free rather "
                     f"than {FIT_PARAMS_TARGET}")
    return notes


class _Question:
    """Everything of a plan that does not change while the answer is looked for."""

    def __init__(self, target: Target, settings: Settings, devices: Sequence[Device], host: Host | None,
                 words: Sequence[str], planner: Planner | None) -> None:
        if planner is None:
            from ..api import plan

            planner = plan
        self.target, self.settings, self.devices, self.host, self.words = target, settings, devices, host, words
        self.planner = planner
        self.parallel = rules.parallel(target.model, settings)
        self.flash = rules.flash_attention(settings, devices)
        self.answers: dict[tuple[object, ...], Plan] = {}

    def visible(self, n_ctx: int) -> list[Device]:
        return rules.visible_devices(self.target.model, self.target.size, n_ctx, self.settings, self.devices)

    def ask(self, n_ctx: int | None, batch: int, devices: Sequence[Device], more: Sequence[str] = (), *,
            layers: bool = True, explain: bool = False) -> Plan:
        """A plan for what Ollama would start; `n_ctx` per slot, None the largest."""
        key = (n_ctx, batch, tuple(device.name for device in devices), tuple(more), layers, explain)
        if key not in self.answers:
            self.answers[key] = self._ask(n_ctx, batch, devices, more, layers, explain)
        return self.answers[key]

    def _ask(self, n_ctx: int | None, batch: int, devices: Sequence[Device], more: Sequence[str], layers: bool,
             explain: bool) -> Plan:
        target, words = self.target, ["-np", str(self.parallel), "-b", str(batch), "-ub", str(batch), "-fa", self.flash]
        words += ["--ctx", "max"] if n_ctx is None else ["-c", str(n_ctx * self.parallel)]
        if self.settings.kv_cache_type:
            words += ["-ctk", self.settings.kv_cache_type, "-ctv", self.settings.kv_cache_type]
        if layers:
            words += ["--strategy", "layers"]
            if len(devices) > 1:   # Ollama passes no split: llama.cpp goes by what is free
                words += ["-ts", ",".join(str(device.free) for device in devices)]
        if target.projectors:
            words += ["--mmproj", target.projectors[0]]
        for adapter in target.adapters:
            words += ["--lora", adapter]
        if target.draft:
            words += ["-md", target.draft]
        if rules.is_embedding(target.model):
            words.append("--embedding")
        seen = list(devices)
        if target.hidden and seen:
            seen[0] = replace(seen[0], free=max(0, seen[0].free - target.hidden))
        return self.planner(target.model, [*words, *self.words, *more], devices=seen, host=self.host, explain=explain)

    def larger_context(self, batch: int, devices: Sequence[Device], everything: int) -> list[str]:
        """A context at which all would fit, if there is one."""
        best = self.ask(None, min(batch, rules.BATCH), devices)
        if best.fits and best.n_gpu_layers >= everything:
            return [f"all {everything} layers fit with num_ctx {best.breakdown.n_ctx // self.parallel} (--ctx max)"]
        return []


def _server_settings(plan: Plan) -> list[str]:
    """The environment of `ollama serve` that places this one model as planned; it holds for every model served."""
    from ..flags.parse import parse
    from ..flags.table import lookup

    found: dict[str, str] = {}
    for flag, value in parse(plan.flags, command=None).given:
        row = lookup(flag)
        if row is None or flag not in _PLACEMENT:
            continue
        name = row[0].env
        if flag == "-ot" and _PART_OF_A_LAYER.match(value):
            # A regex would have to be quoted for whatever starts the server: the layer's other experts go along.
            name, value = _EXPERTS, str(int(found.get(_EXPERTS, "0")) + 1)
        found[name] = f"{found[name]},{value}" if name in found and flag == "-ot" and name != _EXPERTS else value or "1"
    return [f"{name}={value}" for name, value in found.items()]


def _about_settings(settings: Settings, devices: Sequence[Device], use: Sequence[Device], num_gpu: int | None,
                    version: str) -> list[str]:
    notes = []
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLD and version != "0.0.0":
        notes.append(f"Ollama {version} still has engines of its own, whose buffers differ from llama.cpp's: num_gpu "
                     "means the same there, but update to 0.30 or later for these numbers")
    if settings.gpu_overhead:
        notes.append("OLLAMA_GPU_OVERHEAD reserves nothing since Ollama 0.30: LLAMA_ARG_FIT_TARGET=MiB on the server "
                     "does (where num_gpu is not set)")
    if len(use) < len(devices):
        notes.append(f"Ollama puts it on {', '.join(device.name for device in use)} alone")
    if use and num_gpu is not None:
        notes.append("clients that send their own num_ctx or num_batch reload the model with it and undo this plan")
    return notes


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
