"""What to set in Ollama: num_gpu, num_ctx and num_batch from a plan with Ollama's own settings, or
why to leave them.

Since Ollama 0.30 every GGUF runs in llama-server, so that num_gpu is -ngl: it counts the output
layer. Setting it switches llama.cpp's --fit off, which for some models costs more than it gains:
then `num_gpu` is None and `notes` say why.
"""

from __future__ import annotations

import re
from itertools import chain

from ..errors import LaunchRefused
from ..flags.params import FIT_PARAMS_TARGET
from ..flags.parse import items, parse
from ..flags.policy import arguments_of
from ..flags.table import lookup
from ..gguf import read_header
from ..planner import FitChoice, Plan, fit_choice, plan_request
from ..records import dataclass, replace
from ..request import Request
from ..tables import listed
from ..units import MiB, human
from . import settings as rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..machine import Device, Host
    from ..planner.plan import DeviceRow, HostRow, Lever
    from .settings import Settings
    from .target import Target

# LLAMA_ARG_* that move weights; Ollama itself passes everything else of a plan
_PLACEMENT = listed("-ngl -ncmoe -cmoe -ncffn -ot -ts -sm")
_SERVERS = ("cache_ram", "ctx_checkpoints")
_EXPERTS = "LLAMA_ARG_N_CPU_MOE"
_PART_OF_A_LAYER = re.compile(r"blk\\\.\d+\\\.ffn_\([a-z_|]+\)_\(ch\|\)exps=CPU")
# Given flags that a launch by Ollama alone would not have
_NOT_OLLAMAS = listed(
    "-fitt --fit-target -ngl --n-gpu-layers --gpu-layers -ts --tensor-split --margin"
)
_OLD = (0, 30)  # before: its own engines, which estimate the layers themselves
# Ollama's form of a planner's alternative, by its first word
_LEVERS = {
    "-c": "num_ctx {}",
    "-ctk": "OLLAMA_KV_CACHE_TYPE={} on the server",
    "-ub": "num_batch {}",
    "-np": "OLLAMA_NUM_PARALLEL={} on the server",
    "-fa": "OLLAMA_FLASH_ATTENTION=1 on the server",
}


@dataclass(frozen=True)
class OllamaAdvice:
    """`num_gpu` None: leave it to Ollama. `num_batch` is the plan's; it is pinned if Ollama might
    choose a larger one that costs a layer. `server` are LLAMA_ARG_* settings for `ollama serve`;
    `own_choice` is Ollama's number of layers without num_gpu, if not all."""

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
    own_choice: FitChoice | None = None
    words: tuple[str, ...] = ()  # llama-server's, as planned; Ollama's own may differ

    @property
    def parameters(self) -> dict[str, int]:
        """What to write into a Modelfile."""
        values = {} if self.num_gpu is None else {"num_gpu": self.num_gpu}
        values["num_ctx"] = self.num_ctx
        if self.pin_batch:
            values["num_batch"] = self.num_batch
        return values

    def over(self, existing: Mapping[str, object]) -> dict[str, int]:
        """Return the parameters that replace these: a num_gpu that should not be set becomes -1,
        Ollama's value for auto; without a known GPU it stays as it is."""
        # A server merges parameters over the old ones: a key cannot be removed, so -1 says auto
        if self.num_gpu is None and "num_gpu" in existing and self.devices:
            return {"num_gpu": -1, **self.parameters}
        return self.parameters

    @property
    def reasons(self) -> list[str]:
        """The plan's reasons, with Ollama's names for the settings."""
        levers = {lever.name: lever for lever in self.plan.levers}
        # Reasons that name llama-server's flags are said again with Ollama's settings
        reasons = [
            _in_ollamas_words(reason)
            for reason in self.plan.reasons
            if reason.partition(" (")[0] not in levers
        ]
        if self.num_gpu is None or not any(reason.endswith(" missing") for reason in reasons):
            return reasons
        return reasons + [self._saving(lever) for lever in self._useful_levers()]

    def _useful_levers(self) -> list[Lever]:
        """Return those that free memory and that Ollama has a setting for."""
        levers = self.plan.levers
        return [lever for lever in levers if lever.saves > 0 and lever.words[0] in _LEVERS]

    def _saving(self, lever: Lever) -> str:
        """Say what a lever would free, in Ollama's words."""
        word, value = lever.words[0], lever.words[1]
        # -c is of all slots, num_ctx of one
        if word == "-c":
            value = str(int(value) // self.parallel)
        enough = ", enough for one more layer" if lever.enough else ""
        setting = _LEVERS[word].format(value)
        return f"{setting} would free {human(lever.saves)} of GPU memory{enough}"

    @property
    def summary(self) -> list[str]:
        """The plan in a few lines."""
        # The model with its parameters.
        count = "left to Ollama" if self.num_gpu is None else f"{self.num_gpu} of {self.everything}"
        whose = "" if self.pin_batch else " (Ollama's own choice)"
        parts = [
            f"{self.target.model.name}: num_gpu {count}",
            f"num_ctx {self.num_ctx}",
            f"num_batch {self.num_batch}{whose}",
        ]
        if self.parallel > 1:
            parts.append(f"{self.parallel} slots")
        lines = [", ".join(parts)]
        if self.server and self.num_gpu is None:
            lines.append("with the server's settings below:")
        for row in self.plan.devices:
            left = f"left {human(row.remaining)} of {human(row.free)}"
            lines.append(f"{row.name}: {_parts(row)}, margin {human(row.margin)}, {left}")
        lines.append(f"RAM: {_parts(self.plan.host)}")
        return lines


def _parts(row: DeviceRow | HostRow) -> str:
    """Return the sizes of the parts that lie on a device, or in RAM."""
    parts = [
        f"weights {human(row.model)}",
        f"KV cache {human(row.context)}",
        f"compute {human(row.compute)}",
    ]
    if row.extra:
        parts.append(f"extra {human(row.extra)}")
    return ", ".join(parts)


def advise(
    target: Target,
    settings: Settings,
    devices: Sequence[Device],
    host: Host | None = None,
    *,
    num_ctx: int | str | None = None,
    num_batch: int | None = None,
    words: Sequence[str] = (),
    pin: bool = False,
    version: str = "",
    explain: bool = True,
) -> OllamaAdvice:
    """Return the parameters for a model on these devices.

    `num_ctx` may be "max", the largest that keeps the model fully on the GPUs; None is the model's
    own, then the server's, then the default by VRAM; likewise `num_batch`. `words` are more flags
    for the planner. `pin` writes num_gpu even if leaving it to Ollama is better, `explain` adds
    reasons. Raises what the planner raises, and LaunchRefused for "max" without a GPU.
    """
    question = _Question(target, settings, devices, host, words)
    notes = [*target.notes, *settings.ignored]
    n_ctx, batch, use = question.launch(num_ctx, num_batch, notes)
    # Nobody said a context: a mixture's own plan may
    # have a better one than Ollama's default by VRAM
    if num_ctx is None and not pin and not question.context_is_said:
        wanted, its_batch = question.of_a_mixture(n_ctx, batch, use, num_batch)
        if wanted > n_ctx:
            notes.append(
                f"num_ctx {wanted}: with experts in RAM a context larger than Ollama's default of "
                f"{n_ctx} fits"
            )
            num_batch = its_batch
            n_ctx, batch, use = question.launch(wanted, num_batch, notes)
    choice = question.placement(n_ctx, batch, use, pin)
    # The placement was found without reasons, which cost a search of their own
    plan = (
        choice.plan
        if not explain
        else question.ask(n_ctx, batch, use, choice.words, layers=choice.layers, explain=True)
    )
    notes += choice.notes
    if use and num_ctx != "max":
        notes += question.larger_context(
            n_ctx, batch, use, given=num_ctx is not None or not explain
        )
    # Ollama might still choose another batch for the same context
    pin_batch = question.pinned(n_ctx, batch, use, plan, num_batch is not None, num_ctx == "max")
    # Say which files are not in the plan
    companions = (*target.projectors, *target.adapters, *filter(None, (target.draft,)))
    if companions and not plan.breakdown.extras:
        notes += [f"the memory of {', '.join(companions)} is not in these numbers"]
    if is_old(version):
        notes.append(
            f"Ollama {version} still has its own engines, whose buffers differ from llama.cpp's: "
            "num_gpu means the same there, but these numbers need 0.30 or later"
        )
    if settings.gpu_overhead:
        notes.append(
            "OLLAMA_GPU_OVERHEAD reserves nothing since Ollama 0.30: LLAMA_ARG_FIT_TARGET=MiB on "
            "the server does (where num_gpu is not set)"
        )
    if len(use) < len(devices):
        notes.append(f"Ollama puts it on {', '.join(device.name for device in use)} alone")
    if use and choice.num_gpu is not None:
        notes.append(
            "clients that send their own num_ctx or num_batch reload the model and undo this plan"
        )
    return OllamaAdvice(
        target,
        plan,
        tuple(use),
        choice.num_gpu,
        question.everything,
        n_ctx,
        batch,
        pin_batch,
        question.parallel,
        tuple(dict.fromkeys((*notes, *map(_in_ollamas_words, plan.warnings)))),
        tuple(choice.server),
        choice.own,
        tuple(question.words_for(n_ctx, batch)),
    )


@dataclass(frozen=True)
class _Choice:
    """A placement, and how to plan it again. `own`: Ollama's without num_gpu."""

    plan: Plan
    num_gpu: int | None
    words: tuple[str, ...] = ()
    layers: bool = True
    notes: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    own: FitChoice | None = None


@dataclass(frozen=True)
class _Partly:
    """A model that does not fit as a whole, its plan and Ollama's own choice (`own`)."""

    n_ctx: int
    batch: int
    use: Sequence[Device]
    extra: tuple[str, ...]
    plan: Plan
    pin: bool
    own: FitChoice | None


class _Question:
    """The inputs of a plan that stay fixed during the search."""

    def __init__(
        self,
        target: Target,
        settings: Settings,
        devices: Sequence[Device],
        host: Host | None,
        words: Sequence[str],
    ) -> None:
        self.target, self.settings, self.devices, self.host, self.words = (
            target,
            settings,
            devices,
            host,
            words,
        )
        # num_gpu counts the output layer, as -ngl does
        self.everything = target.model.n_layer + 1
        self.parallel = rules.parallel(target.model, settings)
        self.flash = rules.flash_attention(settings, devices)
        # Several questions below ask for the same plan
        self.answers: dict[tuple[object, ...], Plan] = {}

    # --- context and batch

    def launch(
        self, num_ctx: int | str | None, num_batch: int | None, notes: list[str]
    ) -> tuple[int, int, list[Device]]:
        """Return (num_ctx, num_batch, the GPUs that Ollama uses)."""
        target = self.target
        given_batch = num_batch or _whole(target.parameters.get("num_batch"))
        if num_ctx == "max":
            # `launch` for the largest context that keeps the model on the GPUs.
            if not self.devices:
                raise LaunchRefused(
                    "the largest num_ctx for a GPU needs a GPU: describe it with --gpu SIZE"
                )
            # the smallest batch leaves the most for the context; it is pinned, as Ollama would
            # choose a larger one
            batch = given_batch or min(rules.BATCH, self.target.model.n_ctx_train or rules.BATCH)
            use = list(self.devices)
            plan = self.ask(None, batch, use)
            # With this context it may fit one GPU, by Ollama's guess: then the others stay empty
            fewer = self.visible(plan.breakdown.n_ctx)
            if len(fewer) < len(use):
                use, plan = fewer, self.ask(None, batch, fewer)
            n_ctx = plan.breakdown.n_ctx // self.parallel
            if plan.n_gpu_layers < self.everything:
                notes.append(f"no num_ctx keeps this model fully on the GPU; planned for {n_ctx}")
            return n_ctx, batch, use
        # Num_ctx as Ollama uses the given one, the Modelfile's or its own.
        model, vision = self.target.model, self.target.vision
        own = self.target.parameters.get("num_ctx")
        # The context that was given, or that is the Modelfile's `own`
        wanted: int | None
        if isinstance(num_ctx, int):
            # 0 on the command line is the trained context
            wanted = num_ctx or self.target.model.n_ctx_train
        else:
            wanted = max(0, own) if isinstance(own, int) and not isinstance(own, bool) else None
        n_ctx = rules.default_context(self.settings, self.devices) if wanted is None else wanted
        n_ctx = rules.clamped(n_ctx, model, vision)
        # 0 reads like automatic, and is clamped to the minimum
        if wanted == 0 and not isinstance(num_ctx, int):
            notes.append(
                f"num_ctx {own} means {n_ctx} to Ollama, not automatic: remove the line, "
                f"or use --ctx"
            )
        elif wanted is not None and n_ctx != wanted:
            notes.append(
                f"num_ctx {wanted} becomes {n_ctx}: Ollama keeps it between "
                f"{rules.clamped(0, model, vision)} and the trained {model.n_ctx_train}"
            )
        # Which GPUs it uses depends on Ollama's guess, and that on the context
        use = self.visible(n_ctx * self.parallel)
        batch = given_batch or rules.automatic_batch(
            target.model, target.size, n_ctx * self.parallel, use, self.flash
        )
        return n_ctx, batch, use

    @property
    def context_is_said(self) -> bool:
        """Whether the Modelfile or the server says how large a context is."""
        return "num_ctx" in self.target.parameters or self.settings.context_length is not None

    def of_a_mixture(
        self, n_ctx: int, batch: int, use: Sequence[Device], num_batch: int | None
    ) -> tuple[int, int | None]:
        """Return num_ctx and num_batch of the plain plan of a mixture that does not fit as a whole,
        with a batch that is given; num_ctx 0 for another model."""
        if (
            not use
            or not self.target.model.is_moe
            or self.ask(n_ctx, batch, use).n_gpu_layers >= self.everything
        ):
            return 0, num_batch
        given = num_batch or _whole(self.target.parameters.get("num_batch"))
        # As `autolayers MODEL` plans it: 0 leaves context and batch to the plan
        plain = self.ask(0, given or 0, use, layers=False)
        if not plain.fits:
            return 0, num_batch
        breakdown = plain.breakdown
        return breakdown.n_ctx // self.parallel, given or breakdown.n_ubatch

    def visible(self, n_ctx: int) -> list[Device]:
        return rules.visible_devices(
            self.target.model,
            self.target.size,
            n_ctx,
            self.settings,
            self.devices,
            _whole(self.target.parameters.get("main_gpu")),
        )

    def pinned(
        self,
        n_ctx: int,
        batch: int,
        use: Sequence[Device],
        plan: Plan,
        given: bool,
        largest_context: bool,
    ) -> bool:
        """Return whether num_batch is written: it is given, or Ollama might choose a larger one
        that costs a layer."""
        if given or "num_batch" in self.target.parameters:
            return True
        # Without GPUs and size nothing lowers it: the largest that Ollama could take
        largest = rules.automatic_batch(self.target.model, 0, n_ctx * self.parallel, (), self.flash)
        return (
            bool(use)
            and largest > batch
            and (largest_context or self.ask(n_ctx, largest, use).n_gpu_layers < plan.n_gpu_layers)
        )

    # --- placement

    def placement(self, n_ctx: int, batch: int, use: Sequence[Device], pin: bool) -> _Choice:
        """Return the number of layers, or why it is left to Ollama."""
        plan = self.ask(n_ctx, batch, use)
        if not use:
            # A plan without a GPU, which Ollama may see nevertheless.
            if pin:
                return _Choice(plan, 0)
            note = (
                "no GPU found, so num_gpu is left to Ollama, which may see one (describe it with "
                "--gpu SIZE; --pin writes num_gpu 0)"
            )
            return _Choice(plan, None, notes=(note,))
        extra: tuple[str, ...] = ()
        # shouldDisableMMProjOffload: an explicit partial num_gpu sends the projector to the CPU
        if self.target.vision and plan.n_gpu_layers < self.everything:
            # Plan with the projector on the CPU, where an explicit partial num_gpu
            # sends it. More layers fit so, but never all
            extra = ("--no-mmproj-offload",)
            if self.ask(n_ctx, batch, use, extra).n_gpu_layers >= self.everything:
                # All layers would be no partial offload any more,
                # and the projector would go back to the GPU
                extra = (*extra, "-ngl", str(self.everything - 1))
            plan = self.ask(n_ctx, batch, use, extra)
        if plan.n_gpu_layers >= self.everything:
            return _Choice(plan, plan.n_gpu_layers, extra)
        partly = _Partly(n_ctx, batch, use, extra, plan, pin, self.left_alone(n_ctx, batch, use))
        return self._experts(partly) if self.target.model.is_moe else self._dense(partly)

    def _dense(self, partly: _Partly) -> _Choice:
        """Return a dense model that does not fit."""
        plan, extra, own = partly.plan, partly.extra, partly.own
        layers = own.params.layers_wanted(self.everything) if own is not None else 0
        # --fit also chooses the split, which a num_gpu leaves to the free memory
        if len(partly.use) > 1 and layers > plan.n_gpu_layers and own is not None:
            return self._several(partly, own, layers)
        notes: tuple[str, ...] = ()
        if extra:
            notes = (
                f"num_gpu {plan.n_gpu_layers} sends the projector to the CPU, as any partial "
                "num_gpu does; without num_gpu Ollama keeps it on the GPU and offloads fewer "
                "layers",
            )
        elif own is not None or layers == plan.n_gpu_layers:
            # Say how many layers Ollama would offload without num_gpu
            if layers == plan.n_gpu_layers:
                compared = f"Ollama would choose {layers} layers too: num_gpu only pins it"
            else:
                compared = (
                    f"without num_gpu Ollama would offload {layers} of {self.everything} layers"
                )
            notes = (compared,)
        return _Choice(plan, plan.n_gpu_layers, extra, notes=notes, own=own)

    def _experts(self, partly: _Partly) -> _Choice:
        """Return a mixture of experts that does not fit."""
        plan, own = partly.plan, partly.own
        why = (
            "a mixture of experts that does not fit: without num_gpu llama.cpp keeps all layers on "
            "the GPU and moves only experts to RAM, which is faster"
        )
        if partly.pin:
            return _Choice(plan, plan.n_gpu_layers, partly.extra, notes=(why,), own=own)
        # Whole layers in RAM cost attention too; experts alone cost less
        launch = partly.n_ctx, partly.batch, partly.use
        # The environment of `ollama serve` that places this model as planned, and the
        # same as llama-server's flags. It applies to every model served.
        values: dict[str, str] = {}
        flags: dict[str, str] = {}
        for flag, name, value in _placing(self.ask(*launch, layers=False)):
            if flag == "-ot" and _PART_OF_A_LAYER.match(value):
                # a regex would need quoting for whatever starts the server: the layer's other
                # experts move too
                flag, name, value = ("-ncmoe", _EXPERTS, str(int(values.get(_EXPERTS, "0")) + 1))
            # Several -ot are one variable, separated by commas; a switch's value is 1
            appends = name in values and flag == "-ot"
            values[name] = f"{values[name]},{value}" if appends else value or "1"
            flags[flag] = values[name] if value else ""
        server = tuple(f"{name}={value}" for name, value in values.items())
        words = tuple(filter(None, chain.from_iterable(flags.items())))
        exact = self.ask(*launch, words, layers=False)
        # LLAMA_ARG_FIT_TARGET is in whole MiB: rounded up
        margins = ",".join(str(-(-row.margin // MiB)) for row in exact.devices)
        note = (
            f"{why}, so num_gpu is not set (--pin sets it); LLAMA_ARG_FIT_TARGET={margins} alone "
            f"on the server leaves these MiB free, not {FIT_PARAMS_TARGET}"
        )
        return _Choice(exact, None, words, False, (note,), server, own)

    def _several(self, partly: _Partly, own: FitChoice, layers: int) -> _Choice:
        """Choose for several GPUs on which --fit finds a better split than the one by free memory,
        which any num_gpu selects."""
        plan, pin, launch = partly.plan, partly.pin, (partly.n_ctx, partly.batch, partly.use)
        notes = [
            f"any num_gpu splits the layers by free memory, which fits {plan.n_gpu_layers} of "
            f"{self.everything}; without it Ollama places {layers}"
            + ("" if pin else ", so num_gpu is not set (--pin sets it)")
        ]
        # The best split for whole layers, which only the server's environment can say
        best = self.ask(*launch, ("--strategy", "layers"), layers=False)
        if best.fits and best.n_gpu_layers > layers and best.params.tensor_split:
            split = ",".join(f"{share:g}" for share in best.params.tensor_split)
            notes.append(
                f"with LLAMA_ARG_TENSOR_SPLIT={split} on the server, for every model on these "
                f"GPUs, num_gpu {best.n_gpu_layers} fits"
            )
        if pin:
            return _Choice(plan, plan.n_gpu_layers, notes=tuple(notes), own=own)
        words = ["-ngl", str(layers), "-fitt", ",".join(map(str, self._margins()))]
        if own.params.tensor_split:
            words += ["-ts", ",".join(f"{share:g}" for share in own.params.tensor_split)]
        return _Choice(
            self.ask(*launch, words, layers=False), None, tuple(words), False, tuple(notes), own=own
        )

    def _margins(self) -> tuple[int, ...]:
        """Return the MiB that --fit leaves free on each GPU when Ollama starts it."""
        if self.settings.fit_target:
            return self.settings.fit_target
        projectors = sum(read_header(path).n_bytes for path in self.target.projectors)
        # With a projector on the GPU Ollama adds its tensors to llama.cpp's 1024 MiB
        return (FIT_PARAMS_TARGET + -(-projectors // MiB),)

    def left_alone(self, n_ctx: int, batch: int, use: Sequence[Device]) -> FitChoice | None:
        """Return Ollama's placement without num_gpu: --fit with its own margins and its own
        split."""
        own = [
            word
            for item in items(self.words)
            if item.name not in _NOT_OLLAMAS
            for word in item.words
        ]
        words = [*self.words_for(n_ctx, batch), *own, "-fitt", ",".join(map(str, self._margins()))]
        return fit_choice(self.target.model, self._request(words, use))

    # --- plans

    def words_for(self, n_ctx: int | None, batch: int) -> list[str]:
        """Return llama-server's flags as Ollama would start it, without a placement; `n_ctx` per
        slot, None the largest, 0 what the plan chooses; likewise `batch`."""
        target, words = self.target, ["-np", str(self.parallel), "-fa", self.flash]
        # Ollama starts llama-server with -ub equal to -b (llm/llama_server.go)
        words += ["-b", str(batch), "-ub", str(batch)] if batch else []
        if n_ctx != 0:
            words += ["--ctx", "max"] if n_ctx is None else ["-c", str(n_ctx * self.parallel)]
        if self.settings.kv_cache_type:
            words += ["-ctk", self.settings.kv_cache_type, "-ctv", self.settings.kv_cache_type]
        if target.projectors:
            # llama-server takes one --mmproj
            words += ["--mmproj", target.projectors[0]]
        for adapter in target.adapters:
            words += ["--lora", adapter]
        if target.draft:
            words += ["-md", target.draft]
        kind, count = target.drafting
        if kind:
            words += ["--spec-type", kind, "--spec-draft-n-max", str(count)]
        return [*words, "--embedding"] if rules.is_embedding(target.model) else words

    def ask(
        self,
        n_ctx: int | None,
        batch: int,
        devices: Sequence[Device],
        extra: Sequence[str] = (),
        *,
        layers: bool = True,
        explain: bool = False,
    ) -> Plan:
        """Return a plan for what Ollama would start with a num_gpu. Without `layers` the planner,
        or `extra`, sets the placement."""
        key = (
            n_ctx,
            batch,
            tuple(device.name for device in devices),
            tuple(extra),
            layers,
            explain,
        )
        if key not in self.answers:
            words = self.words_for(n_ctx, batch)
            if layers:
                words += ["--strategy", "layers"]
                if len(devices) > 1:  # Ollama passes no split: llama.cpp splits by free memory
                    words += ["-ts", ",".join(str(device.free) for device in devices)]
            # `extra` wins over the words of the command
            given = {item.name for item in items(extra)}
            own = [
                word for item in items(self.words) if item.name not in given for word in item.words
            ]
            request = self._request([*words, *own, *extra], devices)
            self.answers[key] = plan_request(self.target.model, request, explain=explain)
        return self.answers[key]

    def _request(self, words: Sequence[str], devices: Sequence[Device]) -> Request:
        """With flags for Ollama's own behaviour, which a build need not know."""
        seen = list(devices)
        if self.target.hidden and seen:
            # Files that cannot be read count on the first GPU, which holds projectors
            seen[0] = replace(seen[0], free=max(0, seen[0].free - self.target.hidden))
        arguments = arguments_of(words, None)
        names = {device.name for device in seen}
        budget = tuple(
            (name, size) for name, size in arguments.own.get("budget", ()) if name in names
        )
        return Request.of(
            replace(arguments, own={**arguments.own, "budget": budget}),
            devices=seen,
            host=self.host,
            checked=False,
        )

    def larger_context(
        self, n_ctx: int, batch: int, devices: Sequence[Device], given: bool
    ) -> list[str]:
        """Return a note on a context at which all layers would fit, or a larger one if none was
        given."""
        fits = self.ask(n_ctx, batch, devices).n_gpu_layers >= self.everything
        if fits and (given or "num_ctx" in self.target.parameters):
            return []
        # None: the largest context, with the batch that leaves the most for it
        best = self.ask(None, min(batch, rules.BATCH), devices)
        largest = best.breakdown.n_ctx // self.parallel
        if not best.fits or best.n_gpu_layers < self.everything or (fits and largest < 2 * n_ctx):
            return []
        return [f"all {self.everything} layers fit with num_ctx {largest} (--ctx max)"]


def _placing(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield (flag, variable, value) of the plan's words that place the model."""
    for flag, value in parse(plan.flags, command=None).given:
        # row[0].env is the variable of the flag, e.g. LLAMA_ARG_N_CPU_MOE of -ncmoe
        row = lookup(flag)
        if row is not None and flag in _PLACEMENT:
            yield flag, row[0].env, value


def _in_ollamas_words(warning: str) -> str:
    """Reword a planner's line that names a flag which Ollama lacks."""
    flag, _, rest = warning.partition(" ")
    row = lookup(flag)
    if row is not None and row[0].field in _SERVERS:
        # e.g. "-cram 6144: ..."
        return f"{row[0].env}={rest}"
    return warning.replace(
        "--cache-ram limits it", "LLAMA_ARG_CACHE_RAM=MiB on the server limits it"
    )


def is_old(version: str) -> bool:
    """Return whether an Ollama has engines of its own; 0.0.0 is a build of somebody's own."""
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})(?!\d)", version, re.ASCII)
    old = numbers is not None and (int(numbers[1]), int(numbers[2])) < _OLD
    return old and version != "0.0.0"


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
