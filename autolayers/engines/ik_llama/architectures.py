"""What ik_llama.cpp's code asks an architecture for by its name: the rows of architectures.csv.

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

_GROUPS = {
    "=norms": "attn_norm ffn_norm",
    "=biased": "attn_norm attn_norm.bias attn_qkv.bias attn_output.bias ffn_norm ffn_norm.bias "
    "ffn_down.bias ffn_up.bias",
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
def _rows() -> dict[str, dict[str, str]]:
    return {row["architecture"]: row for row in rows("engines/ik_llama/architectures.csv")}


def is_known(architecture: str) -> bool:
    return architecture in _rows()


def split_of(architecture: str) -> str:
    """Return what -sm graph does with its layers: "split", "cut" (cut.py does all of it), or ""."""
    return _rows().get(architecture, {}).get("split", "")


def has(architecture: str, fact: str) -> bool:
    """Return whether a word is among the `facts` of its row."""
    return fact in _names(architecture, "facts")


def own_of(architecture: str) -> frozenset[str] | None:
    """Return what -sm none leaves on a layer's own device; None where it is not known."""
    names = _names(architecture, "own")
    return names - {"-"} if names else None


@cache
def _names(architecture: str, column: str) -> frozenset[str]:
    words = _rows().get(architecture, {}).get(column, "").split()
    return frozenset(name for word in words for name in _GROUPS.get(word, word).split())


def unread(architecture: str, names: Iterable[str]) -> list[str]:
    """Return those of a file's tensors that the loader does not create ("wrong number of
    tensors")."""
    created_names = _names(architecture, "tensors")
    return [name for name in names if created_names and _short(name) not in created_names]


def _short(name: str) -> str:
    short = re.sub(r"^blk\.\d+\.", "", name).removesuffix(".weight")
    return re.sub(r"\.\d+$", ".N", short)
