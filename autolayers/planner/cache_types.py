"""Cache types below q8_0: what public tables say of them, and where none is chosen unasked."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..flags.params import Params

FINE = ("f32", "f16", "bf16", "q8_0")
# types of K and V: the mean KL divergences from an f16 cache that public tables of llama-perplexity
# have, each of one model; the rows of docs/levers.md
MEASURED = {
    ("q4_0", "q4_0"): "0.002 to 0.024 in six tables of one model each, and small models break: the "
    "perplexity of "
    "Qwen3-0.6B rose from 13.5 to 47.8",
    ("q8_0", "q4_0"): "0.0009 in one table of one model",
    ("f16", "q5_1"): "0.0018 in one table of one model (ggml-org/llama.cpp#7412)",
}
LONG = 32768  # tokens of a slot, beyond which --kv-types chooses none below q8_0


def low(name: str) -> bool:
    return name not in FINE


def warnings(params: Params, n_ctx_seq: int) -> Iterator[str]:
    """Of a launch whose cache has such a type."""
    types = {"-ctk": params.cache_type_k or "f16", "-ctv": params.cache_type_v or "f16"}
    words = " ".join(f"{flag} {name}" for flag, name in types.items() if low(name))
    if not words:
        return
    measured = MEASURED.get((types["-ctk"], types["-ctv"]))
    if measured is None:
        yield (
            f"{words}: how much such a cache changes the answers "
            "is not measured publicly (q8_0: hardly)"
        )
        return
    deep = "; none of them has so long a context" if n_ctx_seq > LONG else ""
    yield f"{words}: mean KL divergence from an f16 cache {measured} (q8_0: 0.001){deep}"
