"""Cache types below q8_0: what public tables say of them, and where none is chosen unasked."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..flags.params import Params

FINE = ("f32", "f16", "bf16", "q8_0")
LONG = 32768           # tokens of a slot, beyond which --kv-types chooses none below q8_0


def low(name: str) -> bool:
    return name not in FINE


def warnings(params: Params, n_ctx_seq: int) -> Iterator[str]:
    """Of a launch whose cache has such a type."""
    types = {"-ctk": params.cache_type_k or "f16", "-ctv": params.cache_type_v or "f16"}
    words = " ".join(f"{flag} {name}" for flag, name in types.items() if low(name))
    if not words:
        return
    four = any("4" in name for name in types.values() if low(name))
    found = "0.002 to 0.024 in six tables" if four else "0.002 in one table"
    small = ", and small models break: the perplexity of Qwen3-0.6B rose from 13.5 to 47.8" if four else ""
    deep = "; none of them has so long a context" if n_ctx_seq > LONG else ""
    yield f"{words}: mean KL divergence from an f16 cache {found} of one model each (q8_0: 0.001){small}{deep}"
