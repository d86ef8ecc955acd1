"""The tensors that ik_llama.cpp's loader creates (tensors.csv): it refuses a file that has
others.

    # ["blk.0.attn_q.input_scale"]
    unread("qwen3", ["blk.0.attn_q.weight", "blk.0.attn_q.input_scale"])
"""

from __future__ import annotations

import re
from functools import cache

from ...tables import rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_TABLE = "engines/ik_llama/tensors.csv"
_GROUPS = {
    "=ends": "token_embd output_norm output attn_norm",
    "=attn": "attn_q attn_k attn_v attn_output",
    "=qkv_bias": "attn_q.bias attn_k.bias attn_v.bias",
    "=qk_norm": "attn_q_norm attn_k_norm",
    "=ffn": "ffn_up ffn_gate ffn_down",
    "=each": "ffn_up.N ffn_gate.N ffn_down.N",
    "=split_exps": "ffn_gate_inp ffn_up_exps ffn_gate_exps ffn_down_exps",
    "=exps": "ffn_gate_inp ffn_up_exps ffn_gate_exps ffn_down_exps ffn_gate_up_exps",
    "=shexp": "ffn_up_shexp ffn_gate_shexp ffn_down_shexp",
    "=nextn": "nextn.eh_proj nextn.enorm nextn.hnorm nextn.shared_head_norm",
}


@cache
def created(architecture: str) -> frozenset[str]:
    """Return names without blk.N. and .weight; none for an architecture whose loader is not in the
    table."""
    row = next(
        (
            row
            for row in rows("engines/ik_llama/tensors.csv")
            if row["architecture"] == architecture
        ),
        None,
    )
    words = row["tensors"].split() if row else []
    return frozenset(name for word in words for name in _GROUPS.get(word, word).split())


def unread(architecture: str, names: Iterable[str]) -> list[str]:
    """Return those of a file's tensors that the loader does not create ("wrong number of
    tensors")."""
    created_names = created(architecture)
    return [name for name in names if created_names and _short(name) not in created_names]


def _short(name: str) -> str:
    short = re.sub(r"^blk\.\d+\.", "", name).removesuffix(".weight")
    return re.sub(r"\.\d+$", ".N", short)
