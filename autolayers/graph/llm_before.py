"""What the graphs of older builds have instead of today's (llm.py, inputs.py), by the rule that
ended it."""

from __future__ import annotations

from ..errors import LaunchRefused
from ..ggml.tensor import type_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..builds import Rules
    from ..ggml.tensor import Graph, Tensor

_MASK_ROWS = 64  # GGML_KQ_MASK_PAD; builds up to b4435 had 32, which takes less
# encoders had flash attention for multiples of this many keys (build_attn_mha)
_FLASH_KEYS = 256


def copy_k(g: Graph, k: Tensor, cur: Tensor) -> Tensor:
    """Copy keys [head, n_head, n_tokens] to the cache, before Rules.set_rows."""
    return g.cpy(cur, g.view(k, (cur.nelements,)))


def copy_v(g: Graph, v: Tensor, cur: Tensor, transposed: bool) -> Tensor:
    """Copy values to the cache, transposed if that is, before Rules.set_rows."""
    width, n_tokens = cur.ne[0] * cur.ne[1], cur.ne[2]
    cur = g.reshape(cur, width, n_tokens)
    if not transposed:
        return g.cpy(cur, g.view(v, (n_tokens * width,)))
    return g.cpy(g.transpose(cur), g.view(v, (n_tokens, width), (v.ne[1] * type_size(v.type),)))


def mask_input(g: Graph, rules: Rules, name: str, type_: str, *ne: int) -> Tensor:
    """Return an f32 input, which flash attention casts, before Rules.f16_mask; in the oldest builds
    with more rows."""
    if rules.pads_masks:
        ne = (ne[0], -(-ne[1] // _MASK_ROWS) * _MASK_ROWS, *ne[2:])
    mask = g.input(name, "f32" if type_ == "f16" else type_, *ne)
    return g.cast(mask, "f16") if type_ == "f16" else mask


def encoder_flash(rules: Rules, k: Tensor) -> bool:
    """Whether an encoder may have flash attention, before Rules.flash_any_keys."""
    return rules.encoders_flash and k.ne[1] % _FLASH_KEYS == 0


def heads_of(
    g: Graph, qkv: Tensor, parts: Sequence[tuple[int, int, int]], viewed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q, K and V of a fused QKV, before Rules.views_v, given each one's head size, heads and
    first column. `viewed`: Q and K are views, which since Rules.views_qk holds if they are roped; V
    is a copy."""
    size, row, n, made = qkv.nb[0], qkv.nb[1], qkv.ne[1], []
    for i, (head, heads, at) in enumerate(parts):
        if viewed and i < 2:
            made.append(g.view(qkv, (head, heads, n), (size * head, row), size * at))
        else:
            # a copy of whole rows, then reshaped to heads
            part = g.cont(g.view(qkv, (head * heads, n), (row,), size * at))
            made.append(g.reshape(part, head, heads, n))
    q, k, v = made
    return q, k, v


def split_glu(g: Graph, cur: Tensor, act: str) -> Tensor:
    """Return a gated activation whose two halves are copied and multiplied, before Rules.glu_op."""
    half = cur.ne[0] // 2
    first, second = (
        g.cont(g.view(cur, (half, cur.ne[1]), (cur.nb[1],), at * cur.nb[0])) for at in (0, half)
    )
    return g.mul(g.unary("SILU" if act == "swiglu" else "GELU", first), second)


def rope_end(
    g: Graph, heads: Tensor, n_rot: int, rotated: Callable[[Tensor], Tensor], first: bool
) -> Tensor:
    """Rope the last `n_rot` elements separately and join them with the rest, before it if `first`,
    before Rules.ropes_end."""
    # two views and a concat, where today one rope skips an offset
    (head, n_head, n), size = heads.ne[:3], heads.nb[0]
    strides = (size * head, size * head * n_head)
    rest = g.view(heads, (head - n_rot, n_head, n), strides)
    end = rotated(g.view(heads, (n_rot, n_head, n), strides, size * (head - n_rot)))
    return g.concat(end, rest, 0) if first else g.concat(rest, end, 0)


def refuse_views(rules: Rules) -> None:
    """Refuse what llama.cpp aborted on before Rules.rotates_views."""
    raise LaunchRefused(
        f"llama.cpp build {rules.number} aborts with a quantised cache if Q, K and V are one "
        "matrix; use -ctk f16 -ctv f16"
    )
