"""What drafting gains: tokens that a draft proposes and the model checks together (docs/levers.md).

    speedup = (1 + n accepted) / (1 + checked + n pass + fixed + n more)

in units of one token's seconds. `accepted` is the share of the n drafted tokens that the model
keeps: it depends on the text and not on the machine. `pass` is one pass of the draft, `checked`
what n + 1 tokens take longer than one: by the work of both.
"""

from __future__ import annotations

from ..backends import DEFAULT
from ..builds import NEWEST
from ..keys import written
from ..records import dataclass, replace
from .rates import SHARED, by_card, generation_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..machine import Device
    from ..model import Model
    from .clock import Clock

# Accepted share of n = 1, 2, ... drafted tokens, by text: heads of a model of 27B parameters on 40
# machines. A model of
# 1B parameters that drafts for one of 8B reached 0.72 too (n = 3)
_ACCEPTED = {
    "mixed": (0.884, 0.80, 0.72, 0.65, 0.59, 0.535),
    "code": (0.95, 0.91, 0.88, 0.85, 0.81, 0.76),
    "prose": (0.75, 0.57, 0.47, 0.39, 0.33, 0.28),
}
# the build from which on --spec-type names drafts, and --spec-draft-n-max their tokens
NAMED = 9102
MOST = 6  # drafted tokens: beyond there are no rows
_NEARLY = 0.97  # the fewest drafted tokens that reach this share of the best speedup
WITHIN = 1.25  # nine of ten speedups are within this factor
# a mixture's kernels for a few tokens, besides the experts that they read: per token
MIXTURE = 0.15
KERNELS = 2.5  # per matrix of a draft
AT_ONCE = ("draft-dflash", "draft-dspark")  # one pass for all n


@dataclass(frozen=True)
class Checks:
    """What drafting costs besides the work of its graphs: seconds per drafted token and per step,
    in units of one token's."""

    more: float
    fixed: float = 0.05


@dataclass(frozen=True)
class Drafting:
    """How a launch drafts. `model`: the draft's file, None for the model's own MTP block; `place`:
    the device that has it, HOST, or "" for where the model ends; `n`: drafted tokens a step, None
    to be chosen; `share`: the accepted share of that many drafted tokens, if it was measured."""

    kind: str
    model: Model | None = None
    place: str = ""
    n: int | None = None
    share: tuple[float, int] | None = None


@dataclass(frozen=True)
class Drafted:
    """What drafting makes of a launch's tokens per second: `plain` without it, `rates` by text."""

    kind: str
    n: int
    place: str
    accepted: float
    plain: float
    rates: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, object]:
        return written("speed.draft", self)


# By backend and generation (fixtures/levers/draft.jsonl)
CHECKS = {
    ("CUDA", ""): Checks(0.09),
    ("CUDA", "Volta"): Checks(0.12, 0.0),
    ("CUDA", "Pascal"): Checks(0.12, 0.3),
    ("ROCm", ""): Checks(0.23),
    ("ROCm", "RDNA4"): Checks(0.1),
    ("Vulkan", ""): Checks(0.0),
    ("Vulkan", "RDNA4"): Checks(0.08),
    ("MTL", ""): Checks(0.42),
    ("", ""): Checks(0.1),
}
# What a drafted token of a hybrid model costs more under CUDA by builds before (an RTX PRO 6000, a
# V100)
STATES_BEFORE, STATES = 10440, 0.18


def checks_of(device: Device | None, build: int = NEWEST, hybrid: bool = False) -> Checks:
    """Return the row of a device, None for the CPU. `hybrid`: the model has recurrent states."""
    if device is None:
        return CHECKS["", ""]
    checks = by_card(CHECKS, device, generation_of(device))
    on_cuda = (device.engine or device.backend) == DEFAULT.name
    if hybrid and on_cuda and build < STATES_BEFORE:
        return replace(checks, more=checks.more + STATES)
    return checks


def accepted(n: int, text: str = "mixed", given: tuple[float, int] | None = None) -> float:
    """Return the accepted share of n drafted tokens. `given`: a share that was measured, and its n;
    for other n as if each token were accepted with one probability."""
    if given is None:
        table = _ACCEPTED[text]
        return table[min(n, len(table)) - 1] * (1.0 if n <= len(table) else len(table) / n)
    share, drafted = given
    # Bisection: the share grows with the probability of each token.
    low = 0.0
    high = 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _kept(middle, drafted) < share else (low, middle)
    return _kept(high, n)


def _kept(each: float, n: int) -> float:
    """Return the accepted share of n tokens if each is accepted with this probability after the one
    before it was."""
    return sum(each**i for i in range(1, n + 1)) / n


class DecodingStep:
    """One decoding step of a launch at a depth, for all its sequences."""

    def __init__(self, clock: Clock, depth: float, sequences: int = 1) -> None:
        self.clock = clock
        self.depth = depth
        self.sequences = sequences
        self.one = clock.token(depth, sequences)

    def passes(self, draft: Model, place: str, head: bool = False) -> float:
        """Return the seconds of one pass of a draft on a device, or on the CPU if `place` is none;
        with `head` of the model's own MTP block and its output."""
        size, matrices = _read_of(draft, head)
        device = self.clock.devices.get(place)
        host = self.clock.host
        if device is None:
            seconds = size / host.ram + matrices * KERNELS * SHARED.core_kernel * 1e-6
        else:
            rates = device.rates
            seconds = (
                size / (device.bandwidth * rates.read) + matrices * KERNELS * rates.kernel * 1e-6
            )
        return seconds / self.clock.paces[1]

    def speedup(self, n: int, share: float, passes: float, costs: Checks) -> float:
        """Return the speedup of n drafted tokens, with this share accepted; `passes`: seconds of a
        step's passes of the draft."""
        checked = self.clock.checked(n + 1, self.depth, self.sequences)
        more = costs.more + (MIXTURE if self.clock.weights.n_expert else 0.0)
        # One token is always right: the model's own, after the accepted ones.
        return (1 + n * share) / ((checked + passes) / self.one + costs.fixed + n * more)


def best(gain: Callable[[int], float], highest: int = MOST) -> int:
    """Return the fewest drafted tokens of 1 to `most` whose speedup is nearly the best."""
    speedups = {n: gain(n) for n in range(1, highest + 1)}
    top = max(speedups.values())
    return next(n for n, value in speedups.items() if value >= _NEARLY * top)


def _read_of(model: Model, head: bool = False) -> tuple[float, int]:
    """Return the bytes that one pass of a draft model reads, and its matrices; with `head` those of
    the model's own MTP block and its output."""
    hparams = model.hparams
    used = hparams.n_expert_used_max / hparams.n_expert if hparams.n_expert else 1.0
    size = 0.0
    matrices = 0
    for weight in model.weights:
        in_head = weight.layer == "repeating" and weight.block >= hparams.n_layer
        is_read = not head or in_head or weight.layer == "output"
        if is_read and weight.op.startswith("MUL_MAT"):
            size += weight.info.n_bytes * (used if weight.op == "MUL_MAT_ID" else 1.0)
            matrices += 1
    # A tied output is read as well.
    tied = model.tensors.get("token_embd.weight")
    if "output.weight" not in model.tensors and tied is not None:
        size = size + tied.n_bytes
        matrices = matrices + 1
    return size, matrices
