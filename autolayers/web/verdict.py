"""A plan in words for everybody: one sentence, and what its figures mean.

    # {"state": "yes", "title": "Fits", "parts": ["About 40 tokens/s (30 to 52)", "16k context",
    #  "All of it on the GPU"], "plain": "It writes about 30 words a second ...", ...}
    verdict(plan)

states: yes; if (it fits where enough RAM is free, but the RAM is not known, or it writes slower
than one reads); no.
"""

from __future__ import annotations

from ..ollama.settings import is_embedding
from ..quoting import posix
from ..report.table import rounded as rate
from ..report.text import SHORT, assumed_words, shortage
from ..units import GiB, human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..planner import Plan
    from ..work.speed import Speed

_WORDS_PER_TOKEN = 0.75  # of English
# About 240 a minute, silently and in one's own language
READING = 4  # words a second
PAGE = 400  # words
_NOTED = 1.1  # times the plan's rate


def verdict(plan: Plan) -> dict[str, Any]:
    """Return what the page says first."""
    inputs = plan.inputs
    parts = [f"About {rate(plan.speed.generation)} tokens/s ({spread(plan)})"]
    if inputs is not None:
        parts = [f"About {rate(inputs.per_second)} inputs/s of {inputs.tokens} tokens"]
    # It writes nothing, so it has no tokens per second
    elif is_embedding(plan.model):
        parts = []
    parts += [f"{thousands(plan.breakdown.n_ctx)} context{_filled(plan)}", place(plan)]
    if not plan.fits:
        return {
            "state": "no",
            "title": f"Does not fit: {shortage(plan, SHORT)}",
            "parts": [],
            "numbers": [],
            "plain": "",
            "assumed": "",
            "rate": 0.0,
        }
    # Planned for a given GPU without --ram: what is needed can be said, not whether it is there
    unknown = plan.host.free is None
    # whether one reads faster than it writes
    writes = plan.inputs is None and not is_embedding(plan.model)
    # 1.2: as fast as one reads is not yet slow (_plain says it with the same factor)
    slow = writes and plan.speed.generation * _WORDS_PER_TOKEN < READING / 1.2
    title = "Runs, but slowly" if slow else "Fits"
    if unknown:
        title = f"{title} if {_gib(plan.host.needed)} of RAM are free"
    if is_embedding(plan.model):
        plain = (
            "A model for embeddings: it turns texts into vectors and writes nothing. Start it with "
            "--embedding."
        )
    else:
        words = plan.speed.generation * _WORDS_PER_TOKEN
        pace = (
            "faster than"
            if words > READING * 1.2
            else "slower than"
            if words < READING / 1.2
            else "about as fast as"
        )
        # Of one conversation, not of all slots together
        held = plan.breakdown.n_ctx_seq * _WORDS_PER_TOKEN
        plain = (
            f"It writes about {rate(words)} words a second, {pace} one reads, and keeps about "
            f"{round(held, -3 if held >= 10000 else -2):,.0f} words "
            f"({max(1, round(held / PAGE)):,} pages) in mind."
        )
    return {
        "state": "if" if unknown or slow else "yes",
        "title": title,
        "parts": parts,
        "numbers": _numbers(plan),
        "plain": plain,
        "assumed": assumed(plan),
        "rate": inputs.per_second if inputs is not None else plan.speed.generation,
    }


def _numbers(plan: Plan) -> list[tuple[str, str]]:
    """Return the figures that are shown large, each with what it is."""
    speed, inputs = plan.speed, plan.inputs
    numbers = [
        (thousands(plan.breakdown.n_ctx), "context"),
        (f"{plan.model.size / GiB:.1f}", "GiB to download"),
    ]
    if inputs is not None:
        return [(rate(inputs.per_second), f"inputs/s of {inputs.tokens} tokens"), *numbers]
    if is_embedding(plan.model):
        return numbers
    full = rate(speed.generation_full)
    later = f", {full} when the context is full" * (full != rate(speed.generation))
    return [(rate(speed.generation), f"tokens/s ({spread(plan)}{later})"), *numbers]


def _filled(plan: Plan) -> str:
    """Return the rate with a full context, where it is another one."""
    full = rate(plan.speed.generation_full)
    writes = plan.inputs is None and not is_embedding(plan.model)
    return f", {full} tokens/s when it is full" * (writes and full != rate(plan.speed.generation))


def spread(plan: Plan) -> str:
    """Return the range of the predicted rate: "28 to 52"."""
    return " to ".join(map(rate, ends(plan.speed)))


def ends(speed: Speed) -> tuple[float, float]:
    """Return the range of the predicted rate, in tokens per second."""
    return speed.generation / speed.generation_spread, speed.generation * speed.generation_spread


def assumed(plan: Plan) -> str:
    """Return what the figures assume of the machine: "RAM assumed to be 38 GB/s; 8 cores
    assumed"."""
    words = assumed_words(plan.speed)[2:]
    parts = [words] if words else []
    host = plan.host
    if host.free is not None and host.total is not None and host.total > host.free:
        left = _gib(host.total - host.free)
        parts.append(f"{left} of RAM left to the system and other programs")
    # A hypothetical card is empty; the one at home often drives a display
    if any(device.total == device.free for device in plan.devices) and not plan.host.shared:
        parts.append("nothing else is on the GPU, not even a display")
    return "; ".join(parts)


def needed(plan: Plan) -> int:
    """Return the bytes of RAM that a plan that fits needs where the RAM is not known; 0
    otherwise."""
    return plan.host.needed if plan.fits and plan.host.free is None else 0


def faster(plan: Plan) -> dict[str, Any] | None:
    """Return the fastest alternative that may be faster, but surely is not: {"flags", "words"}, so
    that the first sight says why the plan does not take it."""
    here = plan.speed
    alternatives = [
        other
        for other in plan.alternatives
        if other.speed.generation > here.generation * _NOTED
        and other.n_ctx >= plan.breakdown.n_ctx
        # As sure and faster would be the plan itself
        and other.speed.generation_spread > here.generation_spread
    ]
    if not alternatives or not plan.fits:
        return None
    best = max(alternatives, key=lambda other: other.speed.generation)
    low, high = (f"{rate(value)}" for value in ends(best.speed))
    worse = best.speed.generation / best.speed.generation_spread < here.generation
    why = (
        f"not taken, because it may be slower than {rate(here.generation)}"
        if worse
        else "less sure"
    )
    words = (
        f"Perhaps {rate(best.speed.generation)} tokens/s ({low} to {high}) with "
        f"{posix(best.change)}: {why}. Measure both with autolayers tune."
    )
    return {"flags": list(best.flags), "change": list(best.change), "words": words}


def loss(bits: int) -> str:
    """Return what a quantisation of this level costs: "least", "little", "noticeable" or
    "heavy"."""
    return (
        "least" if bits >= 6 else "little" if bits >= 4 else "noticeable" if bits == 3 else "heavy"
    )


def place(plan: Plan) -> str:
    """Return where the model is, for everybody."""
    if not plan.devices or not plan.n_gpu_layers:
        return "All of it on the CPU"
    gpus = {device.name for device in plan.devices}
    whole = all(
        row.device in gpus and gpus.issuperset(row.buffers)
        for row in plan.layers
        # Its lookup table is in RAM with nearly every launch, and costs nothing
        if row.name != "input"
    )
    return "All of it on the GPU" if whole else "Partly in RAM"


def where(placement: str) -> str:
    """Return the planner's words of where the weights are, for everybody."""
    head, _, rest = placement.partition(" layers on the GPU")
    count, _, everything = head.partition(" of ")
    if count == "0":
        return "All of it on the CPU"
    if count == everything:
        placement = rest.removeprefix(", ") or "All of it on the GPU"
    return placement[:1].upper() + placement[1:]


def thousands(tokens: int) -> str:
    """Return "16k" for 16384, "17k" for 17664 and "9.2k" for 9472, rounded down."""
    if tokens < 1024:
        return str(tokens)
    # Down, so that no more is promised than there is
    tenths = tokens * 10 // 1024
    return (
        f"{tenths // 10}k"
        if tenths >= 100 or tenths % 10 == 0
        else f"{tenths // 10}.{tenths % 10}k"
    )


def _gib(size: int) -> str:
    return f"{size / GiB:.1f} GiB" if size >= GiB else human(size)
