"""The planner's answer: a launch, what it takes on each device, whether it fits, and why it was
chosen."""

from __future__ import annotations

from functools import partial

from ..engines import LLAMA_SERVER
from ..keys import written
from ..memory.ram import Ram, ram_of
from ..records import dataclass, lazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..flags.params import Params
    from ..memory.breakdown import Breakdown, Static
    from ..model import Model
    from ..work.speed import Speed
    from .advice import Remedy
    from .embedder import EmbeddingInputs
    from .measured import Measured
    from .serving import Saved


def constantly(answer: Any) -> Any:
    return answer


@dataclass(frozen=True)
class DeviceRow:
    """One device, bytes. `free` is what may be allocated now (or the budget); `margin` is
    deliberately left free of it."""

    name: str
    description: str
    total: int
    free: int
    margin: int
    margin_parts: tuple[tuple[str, int], ...]
    model: int
    context: int
    compute: int
    extra: int = 0  # mmproj, draft model, LoRA

    @property
    def used(self) -> int:
        return self.model + self.context + self.compute + self.extra

    @property
    def remaining(self) -> int:
        """What is left after the margin; negative: by how much it does not fit."""
        return self.free - self.margin - self.used


@dataclass(frozen=True)
class HostRow:
    """System RAM, bytes. `resident` must be in RAM at once: weights that are only mapped from the
    file count with the pages that are read, not with their address range. `growing` is the most
    that serving may add. `shared` is on devices that use this memory. `mapped`: the part of
    `resident` that is pages of the file, which the system may drop. `free` is None if unknown: then
    nothing is compared with it."""

    model: int
    context: int
    compute: int
    extra: int = 0
    resident: int = 0
    growing: int = 0
    margin: int = 0
    free: int | None = None
    # What the whole machine has, to say whether other programs hold what is missing.
    total: int | None = None
    shared: int = 0
    mapped: int = 0

    @property
    def used(self) -> int:
        return self.model + self.context + self.compute + self.extra

    @property
    def taken(self) -> int:
        """What it takes after everything has grown."""
        return self.resident + self.shared + self.growing

    @property
    def needed(self) -> int:
        """What must be available, including the margin; growth counts only if it is limited by the
        available memory."""
        return self.taken + self.margin - (self.growing if self.free is None else 0)

    @property
    def remaining(self) -> int | None:
        """What is left after the margin and all growth; negative: it would swap."""
        return None if self.free is None else self.free - self.needed


@dataclass(frozen=True)
class LayerRow:
    """One layer: the device that computes it, and the bytes of its weights by buffer type. The
    input layer's are the embeddings and whatever else is read once per token."""

    name: str  # input, its number, output
    device: str
    buffers: Mapping[str, int]


@dataclass(frozen=True)
class FitChoice:
    """What `llama-server --fit on` would do with the same given flags (one/fit.py), for
    comparison."""

    params: Params
    breakdown: Static
    fits: bool
    speed: Speed
    placement: str
    flags: tuple[str, ...] = ()  # all of that launch

    def to_dict(self) -> dict[str, object]:
        return written("fit", self)


@dataclass(frozen=True)
class Faster:
    """All flags of a faster launch, and its tokens per second."""

    flags: tuple[str, ...]
    rate: float

    def to_dict(self) -> dict[str, object]:
        return written("faster", self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Faster:
        """Return what `to_dict` gave. Raises KeyError, TypeError or ValueError."""
        return cls(tuple(map(str, values["flags"])), float(values["tokens_per_second"]))


@dataclass(frozen=True)
class Smaller:
    """A quantisation of the model, bytes, that is wholly on the devices at the launch's context; ""
    for none. `rate`: tokens per second then, 0 if not computed."""

    type: str
    size: int
    rate: float = 0.0

    def to_dict(self) -> dict[str, object]:
        return written("smaller_file", self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Smaller:
        """Return what `to_dict` gave. Raises KeyError, TypeError or ValueError."""
        return cls(str(values["type"]), int(values["size"]), float(values["tokens_per_second"]))


@dataclass(frozen=True)
class Elsewhere:
    """The launch on the same GPUs under another backend, which is another build of llama.cpp: all
    flags of it."""

    backend: str
    flags: tuple[str, ...]
    speed: Speed

    def to_dict(self) -> dict[str, object]:
        return written("other_backend", self)


@dataclass(frozen=True)
class Lever:
    """A change of one flag, and the bytes of device memory that it would free."""

    name: str
    words: tuple[str, ...]
    saves: int
    enough: bool  # with it, the next step would fit

    def to_dict(self) -> dict[str, object]:
        return written("levers", self)


@dataclass(frozen=True)
class Alternative:
    """An alternative: all flags of that launch, and what they change of the given ones; of several
    `servers` that of the first, with the tokens per second of all."""

    flags: tuple[str, ...]
    placement: str
    n_gpu_layers: int
    n_ctx: int
    speed: Speed
    note: str = ""  # what else it changes
    servers: int = 1
    change: tuple[str, ...] = ()  # in place of what the given flags or the plan say

    def to_dict(self) -> dict[str, object]:
        return written("alternatives", self)


@dataclass(frozen=True)
class Reasons:
    """What explains a launch, and what could be launched instead: nothing, or what is known so far.
    Those of a plan that is explained or advised (answer.Explained) are computed when they are first
    read."""

    price: tuple[str, ...] = ()  # what the next step would cost
    levers: tuple[Lever, ...] = ()  # what the usual changes would free on the devices
    fit_choice: FitChoice | None = None
    alternatives: tuple[Alternative, ...] = ()  # if the plan fits
    remedies: tuple[Remedy, ...] = ()  # if it does not
    # if it fits and is advised, not explained: a known alternative
    faster: Faster | None = None
    smaller: Smaller | None = None  # if it fits: a smaller file that is worth it
    # if it fits: another backend that may be faster on these GPUs
    elsewhere: Elsewhere | None = None
    warnings: tuple[str, ...] = ()  # of what was left out


NO_REASONS = Reasons()


@dataclass(frozen=True)
class Confirmed:
    """What the installed llama.cpp said of the launch (launch/confirm.py). `difference`: bytes that
    were added, by device and part; `unasked`: flags of the launch that it cannot be asked for."""

    program: str
    build: int  # 0: it does not say
    rounds: int
    equal: bool
    difference: Mapping[str, Mapping[str, int]]
    unasked: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return self.equal and not self.unasked


@dataclass(frozen=True)
class Plan:
    """A launch and what it allocates.

    >>> plan = autolayers.plan(model, ["-c", "8192"], devices=[gpu])      # doctest: +SKIP
    >>> plan.n_gpu_layers, plan.flags, plan.devices[0].compute            # doctest: +SKIP
    """

    model: Model
    params: Params  # complete: given and solved
    breakdown: Breakdown
    devices: tuple[DeviceRow, ...]
    host: HostRow
    fits: bool
    flags: tuple[str, ...]  # llama-server arguments, complete as far as memory is concerned
    placement: str  # in words: "33 of 33 layers on the GPU"
    predict: Callable[[], Speed]  # computes `speed`
    place: Callable[[], tuple[LayerRow, ...]]  # computes `layers`
    found: tuple[str, ...] = ()  # the reasons that its search found
    limits: tuple[str, ...] = ()  # what raises the limit of a GPU that uses RAM
    noted: tuple[str, ...] = ()  # warnings of the launch
    why: Reasons = NO_REASONS
    paid: str = ""  # the reason that says what a larger context costs
    # the reasons that say why a device has nothing of the launch
    idle: tuple[str, ...] = ()
    engine: str = LLAMA_SERVER.name  # the program that it is for
    broken: str = ""  # what was promised to users and is not kept, which is a warning too
    confirmed: Confirmed | None = None

    def __getstate__(self) -> dict[str, object]:
        """What it has left to compute is computed, as its search cannot be pickled."""
        done = {
            "predict": partial(constantly, self.speed),
            "place": partial(constantly, self.layers),
        }
        return {**self.__dict__, **done}

    @lazy
    def speed(self) -> Speed:
        """Predicted, for the requested workload."""
        return self.predict()

    @lazy
    def layers(self) -> tuple[LayerRow, ...]:
        """The input layer, each block and the output layer, and where their weights are; () for one
        of several models: only a summary is kept."""
        return self.place()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it was chosen, and if it is explained what the next step would cost."""
        return *self.found, *self.why.price, *self.limits

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the launch, and of what the budget did not last for."""
        return *filter(None, [self.broken]), *self.noted, *self.why.warnings

    @property
    def levers(self) -> tuple[Lever, ...]:
        """What the usual changes would free on the devices, if the plan is explained."""
        return self.why.levers

    @property
    def fit_choice(self) -> FitChoice | None:
        """What --fit does, if the plan is explained."""
        return self.why.fit_choice

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """If the plan fits and is explained."""
        return self.why.alternatives

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """What would make it fit, if it does not and is advised."""
        return self.why.remedies

    @property
    def faster(self) -> Faster | None:
        """If it fits and is advised, not explained: a known alternative."""
        return self.why.faster

    @property
    def smaller(self) -> Smaller | None:
        """If it fits and is advised or explained: a smaller file that is worth it."""
        return self.why.smaller

    @property
    def elsewhere(self) -> Elsewhere | None:
        """If it fits and is explained: another backend that may be faster on these GPUs."""
        return self.why.elsewhere

    @property
    def inputs(self) -> EmbeddingInputs | None:
        """What a launch that answers embeddings or a reranker's scores is asked; None for one that
        writes text."""
        from .embedder import inputs

        return inputs(self.params, self.speed, self.breakdown.n_ctx_seq)

    @property
    def saved(self) -> Saved | None:
        """What saved prompts keep, of conversations of the workload's length; None: nothing."""
        from .serving import saved

        return saved(self.params, self.breakdown, self.speed.workload)

    @property
    def ram(self) -> Ram:
        """What it needs of RAM, for whoever limits it. What is on devices that share the RAM counts
        in full, as some drivers take it from the process's control group."""
        host = self.host
        # --cache-ram -1: prompts are kept without a limit.
        endless = self.params.cache_ram is not None and self.params.cache_ram < 0
        return ram_of(host.resident + host.shared, None if endless else host.growing, host.mapped)

    @lazy
    def measured(self) -> Measured | None:
        """What somebody measured of this model or a twin of it on these cards; None: nothing."""
        from .measured import measured

        used = [
            (device.name, device.description, device.total)
            for device in self.devices
            if device.model
        ]
        return measured(self.model, used, self.speed)

    def __repr__(self) -> str:
        return f"Plan({self.model!r}, {' '.join(self.flags)!r}, fits={self.fits})"

    @property
    def n_gpu_layers(self) -> int:
        """llama.cpp's count: the output layer is the first one offloaded, n_layer + 1 is
        everything."""
        return self.params.layers_wanted(self.n_layer + 1, limit=False)

    @property
    def n_layer(self) -> int:
        return self.model.hparams.n_layer_all

    @property
    def exact(self) -> bool:
        # what is there from the start; what grows has a limit of its own
        held = [extra for extra in self.breakdown.extras if not extra.upper_limit]
        proven = self.breakdown.exact or (self.confirmed is not None and self.confirmed.exact)
        return proven and all(extra.exact for extra in held)

    @property
    def version(self) -> str:
        """Of the package that made it."""
        from .. import __version__

        return __version__

    @property
    def inexact_unsaid(self) -> bool:
        """Whether sizes are upper bounds and no warning says so with its reason."""
        return not self.exact and not any("upper bound" in line for line in self.warnings)

    def to_dict(self) -> dict[str, object]:
        """Return the --json document (schema 1); sizes in bytes. `beside` is the old name of
        `extra`."""
        return written("", self)
