"""The quantisation of a file: as its name says it, otherwise as its header does.

quantisation("models/Qwen3-8B-UD-Q4_K_XL.gguf", {})      # "UD-Q4_K_XL"
quantisation("blobs/sha256-2bada8", {"general.file_type": 15})  # "Q4_K_M"
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

# At the end of a file's name, before a shard's number
_QUANT = r"[-.]((?:UD-)?(?:I?Q|TQ|BF|F|MXFP|NVFP)\d[A-Z0-9_]*)(?:-\d{5}-of-\d{5})?\.gguf$"
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
