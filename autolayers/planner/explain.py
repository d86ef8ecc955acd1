"""Why this plan: what one step more would cost, and what each lever would give."""

from __future__ import annotations

from ..flags.params import EXPERTS_REGEX, FFN_REGEX
from ..records import dataclass, replace
from ..units import human
from .evaluate import FIT, FULL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..flags.params import Params
    from .evaluate import Candidate, Evaluator


@dataclass(frozen=True)
class Lever:
    """A change of one flag, and the device memory in bytes that it would free (negative: it takes more)."""

    name: str
    words: tuple[str, ...]
    saves: int
    enough: bool      # the next step would fit with it

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "flags": list(self.words), "saves": self.saves, "enough": self.enough}


def next_step(params: Params, given: Params, everything: int) -> tuple[str, Params] | None:
    """The launch with one layer more on the GPUs, and what to call it; None where everything is there already."""
    solved = params.overrides[len(given.overrides):]
    if solved:
        text = {EXPERTS_REGEX: "the experts of one layer more", FFN_REGEX: "the FFN weights of one layer more"}
        name = next((t for regex, t in text.items() if solved[-1][0].endswith(regex)), "the rest of that layer")
        return name, replace(params, overrides=params.overrides[:-1])
    n = params.n_gpu_layers
    if n is None or n < 0 or n >= everything:
        return None
    # A split in exact layer counts would not describe one layer more
    split = params.tensor_split if given.tensor_split is not None else None
    return f"layer {n + 1} of {everything}", replace(params, n_gpu_layers=n + 1, tensor_split=split)


def price_of(evaluator: Evaluator, candidate: Candidate, step: tuple[str, Params]) -> tuple[str, ...]:
    """The price of the next step on each device, and how much of it is missing."""
    name, params = step
    after = evaluator.candidate(params, FULL)
    if after is None:
        return ()
    lines = []
    for device, usage in after.breakdown.devices.items():
        price = usage.total - candidate.breakdown.devices[device].total
        left = after.spare.get(device, 0)
        if left < 0:
            lines.append(f"{name} would take {human(price)} more on {device}: {human(-left)} missing")
    return tuple(lines)


def levers(evaluator: Evaluator, candidate: Candidate, given: Params,
           step: tuple[str, Params] | None) -> tuple[Lever, ...]:
    """The five usual changes, each tried alone, with the device memory it frees in bytes."""
    use, params = candidate.breakdown, candidate.params
    half = max(256, use.n_ctx // 2 // 256 * 256)
    changes: list[tuple[str, tuple[str, ...], dict[str, object]]] = []
    if half < use.n_ctx:
        changes.append(("half the context", ("-c", str(half)), {"n_ctx": half}))
    if (params.cache_type_k or "f16") in ("f16", "f32", "bf16") and params.flash_attn != "off":
        changes.append(("a q8_0 cache", ("-ctk", "q8_0", "-ctv", "q8_0"),
                        {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}))
    if use.n_ubatch > 64:
        smaller = use.n_ubatch // 2
        changes.append(("half the micro-batch", ("-ub", str(smaller)), {"n_ubatch": smaller}))
    if use.n_seq_max > 1:
        changes.append(("one slot", ("-np", "1"), {"n_parallel": 1, "kv_unified": None}))
    if not use.flash_attn:
        changes.append(("flash attention", ("-fa", "on"), {"flash_attn": "on"}))
    before = sum(usage.total for usage in use.devices.values())
    found = []
    for name, words, values in changes:
        after = evaluator.candidate(replace(params, **values), FULL)  # type: ignore[arg-type]
        if after is None:
            continue
        saved = before - sum(usage.total for usage in after.breakdown.devices.values())
        further = evaluator.candidate(replace(step[1], **values), FIT) if step else None  # type: ignore[arg-type]
        found.append(Lever(name, words, saved, further is not None and further.fits))
    return tuple(found)
