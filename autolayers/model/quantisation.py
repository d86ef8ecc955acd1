"""The quantisation of a file: as its name says it, otherwise as its header does.

quantisation("models/Qwen3-8B-UD-Q4_K_XL.gguf", {})      # "UD-Q4_K_XL"
quantisation("blobs/sha256-2bada8", {"general.file_type": 15})  # "Q4_K_M"

And what llama-quantize makes of a matrix, as tensor_allows_quantization and tensor_type_fallback of
src/llama-quant.cpp have it (the same from b10435 to b11549):

stored_as("q4_K", 1408)                                  # "q5_0": 256 does not divide the row
"""

from __future__ import annotations

from ..gguf import BY_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

# At the end of a file's name, before a shard's number
_QUANT = r"[-.]((?:UD-)?(?:I?Q|TQ|BF|F|MXFP|NVFP)\d[A-Z0-9_]*)(?:-\d{5}-of-\d{5})?\.gguf$"
# Types for a whole file (llama-quantize --pure), the largest first
WHOLE = (
    *("f16", "q8_0", "q6_K", "q5_K", "q4_K", "iq4_xs"),
    *("q3_K", "iq3_xxs", "q2_K", "iq2_xxs", "iq1_s"),
)
# general.file_type of what people use: enum llama_ftype of llama.h
FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}


# A type with blocks of 256 -> the one with blocks of 32 that rows get which 256 does not divide
_FALLBACK = {
    **dict.fromkeys(
        ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"
    ),
    **dict.fromkeys(("q2_0", "q2_K", "q3_K", "tq1_0", "tq2_0"), "q4_0"),
    "q4_K": "q5_0",
    "q5_K": "q5_1",
    "q6_K": "q8_0",
}
# Parts of the names of matrices that are left as they are: small ones, tables, and what chooses
_KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    *(f"time_mix_{name}{i}.weight" for name in "wva" for i in (0, 1, 2)),
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
)


def is_kept(name: str) -> bool:
    """Return whether llama-quantize leaves a matrix of this name as it is."""
    return not name.endswith("weight") or any(part in name for part in _KEPT)


def stored_as(type: str, row: int) -> str:
    """Return the type that rows of this many numbers get where `type` is wanted."""
    if row % BY_NAME[type].blck_size == 0:
        return type
    type = _FALLBACK.get(type, type)
    return type if row % BY_NAME[type].blck_size == 0 else "f16"


def quantisation(path: str, metadata: Mapping[str, object]) -> str:
    """Return Q4_K_M or the like; "" if neither says it."""
    name = path if path.lower().endswith(".gguf") else f"{path}.gguf"
    if match := named(name):
        return match[1].upper()
    kind = metadata.get("general.file_type")
    return FILE_TYPES.get(kind, "") if isinstance(kind, int) else ""


def named(path: str) -> re.Match[str] | None:
    """Return the match of the quantisation at the end of a file's name, group 1 its name."""
    import re  # a small plan asks for no quantisation

    return re.search(_QUANT, path, re.IGNORECASE)
