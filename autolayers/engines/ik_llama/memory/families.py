"""ik_llama.cpp's graphs by architecture (src/graphs/, 8337e4cd): what each does of graph.py's
parts, in its order."""

from __future__ import annotations

from ....ggml.tensor import Tensor
from ....records import dataclass
from .delta import qwen3next
from .gemma4 import gemma4
from .graph import Builder, Experts
from .latent import BY_KEYS, deepseek2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Family = Callable[[Builder], Tensor]


_NORMALISED = Experts(normalised=True, bias=False)
_STEP = 4  # n_no_rope_layer_step of llama4 and smollm3: each such layer has no rope


def _factors(b: Builder, il: int) -> Tensor | None:
    """Mirror build_rope_factors."""
    factors = b.w(f"rope_freqs.weight@{il}")
    if factors is not None:
        return factors
    # LongRoPE: the long factors once a sequence may outgrow the training context
    long = b.context.n_ctx // b.context.n_seq_max > b.hp.n_ctx_orig_yarn
    return b.w(f"rope_factors_{'long' if long else 'short'}.weight@{il}")


def _llama(b: Builder) -> Tensor:
    """Mirror build_llama, with the factors of Granite and the chunks of Llama 4."""
    g, hp = b.graph, b.hp
    four = b.architecture == "llama4"
    cur = b.embeddings()
    if hp.f_embedding_scale:
        cur = g.scale(cur)
    pos = b.positions()
    scale = g.input("inp_scale", "f32", 1, 1, b.tokens) if four else None
    mask = b.mask()
    # llama4 has a second mask for chunks, which three layers of four read
    sliding = b.mask() if four else mask
    ids = b.output_ids() if b.tokens > 1 else None
    for il in range(hp.n_layer_all):
        start, last = cur, il == hp.n_layer_all - 1
        rope = not four or (il + 1) % _STEP != 0
        here = sliding if four and il % 4 < 3 else mask
        if rope:
            inp = b.std_attention(
                il,
                cur,
                pos,
                ids if last and b.tokens > 1 else None,
                here,
                _factors(b, il),
                q_scaled=bool(hp.f_attention_scale),
            )
            if hp.f_residual_scale:
                inp = g.scale(inp)
        else:
            q, k, v = b.qkv_normed(
                il, b.norm(cur, b.of(il, "attn_norm.weight")), bool(hp.f_attention_scale)
            )
            if scale is not None:
                q = g.mul(q, scale)
            cur = b.kv(
                il, k, v, q, here, b.of(il, "attn_output.weight"), b.of(il, "attn_output.bias")
            )
            if last and ids is not None:
                rows = b.output_ids()
                cur, start = g.get_rows(cur, rows), g.get_rows(start, rows)
            inp = g.add(cur, start)
        norm = b.of(il, "ffn_norm.weight")
        if b.of(il, "ffn_gate_inp.weight") is None:
            cur = b.ffn(il, inp, norm, add_input=True)
        elif four:
            normed = b.norm(inp, norm)
            routed = b.moe(il, normed, Experts(gating="sigmoid", bias=False), add_input=True)
            cur = g.add(routed, b.ffn(il, normed, suffix="_shexp"))
        else:
            cur = b.moe(il, b.norm(inp, norm), _NORMALISED, add_input=True)
        if hp.f_residual_scale:
            cur = g.scale(cur)
    cur = b.head(cur)
    return g.scale(cur) if hp.f_logit_scale else cur


@dataclass(frozen=True)
class Standard:
    """A row of graphs with build_std_attention and a feed forward network that adds its input.
    `swa`: "even" or "layers" for layers with the mask of a window."""

    moe: Experts | None = None
    swa: str = ""
    norm: str = "ffn_norm"
    ids_always: bool = False
    factors: bool = False
    input_norm: bool = False
    post: bool = False
    late_ids: bool = False
    rope_by_swa: bool = False
    sinks: bool = False

    def __call__(self, b: Builder) -> Tensor:
        g, hp = b.graph, b.hp
        cur = b.embeddings()
        if self.input_norm:
            cur = g.rms_norm(cur)
        pos = b.positions()
        mask = b.mask()
        window = b.mask() if self.swa else mask
        ids = b.output_ids() if (self.ids_always or b.tokens > 1) and not self.late_ids else None
        for il in range(hp.n_layer):
            last = il == hp.n_layer - 1
            if self.late_ids and last and b.tokens > 1:
                ids = b.output_ids()
            slides = bool(self.swa) and (il % 2 == 0 if self.swa == "even" else hp.is_swa(il))
            inp = b.std_attention(
                il,
                cur,
                pos,
                ids if last and b.tokens > 1 else None,
                window if slides else mask,
                _factors(b, il) if self.factors else None,
                rope=slides or not self.rope_by_swa,
                sinks=b.of(il, "attn_sinks.weight") if self.sinks else None,
                post=b.of(il, "post_attention_norm.weight") if self.post else None,
            )
            weight = b.of(il, f"{self.norm}.weight")
            if self.moe is not None and b.of(il, "ffn_gate_inp.weight") is not None:
                cur = b.std_moe(il, inp, weight, self.moe)
            elif self.post:
                cur = b.norm(b.ffn(il, inp, weight), b.of(il, "post_ffw_norm.weight"))
                cur = g.add(cur, inp)
            else:
                cur = b.ffn(il, inp, weight, add_input=True)
        return b.head(cur)


@dataclass(frozen=True)
class Written:
    """A row of graphs with attention written out: norm, queries, keys and values, rope; then the
    output rows, and both sums."""

    kind: str = "SILU"
    parallel: bool = True
    norm: str = "rms"
    qkv: str = "grouped"
    q_scaled: bool = False
    rope: str = "all"
    scale_in: bool = False
    swa: str = ""
    post: bool = False
    factors: bool = False
    output_bias: bool = True
    softcap: bool = False
    depth: bool = False
    head_scaled: bool = False
    head_kind: str = "rms"
    capped: bool = False
    ids_first: bool = False
    positions: bool = True
    embedded: bool = False
    ffn: str = "plain"
    normed_heads: str = ""

    def __call__(self, b: Builder) -> Tensor:
        g, hp = b.graph, b.hp
        cur = b.embeddings()
        if self.scale_in:
            cur = g.scale(cur)
        pos = b.positions() if self.positions else None
        ids = None
        mask = b.mask()
        window = b.mask() if self.swa in ("even", "six") else mask
        if self.ids_first:
            ids = b.output_ids()
        if self.embedded:
            table = b.w("position_embd.weight")
            assert table is not None
            assert pos is not None
            cur = g.add(cur, g.get_rows(table, pos))
        for il in range(hp.n_layer):
            start, last = cur, il == hp.n_layer - 1
            slides = il % 2 == 0 if self.swa == "even" else (il + 1) % 6 != 0
            normed = b.norm(
                cur, b.of(il, "attn_norm.weight"), b.of(il, "attn_norm.bias"), self.norm, il
            )
            again = b.of(il, "attn_norm_2.weight")
            first = (
                normed
                if again is None
                else b.norm(cur, again, b.of(il, "attn_norm_2.bias"), self.norm, il)
            )
            q, k, v = _QKV[self.qkv](b, il, first, self.normed_heads)
            if self.rope == "all" or (self.rope == "steps" and (il + 1) % _STEP != 0):
                assert pos is not None
                table = _factors(b, il) if self.factors else None
                q = g.rope(q, pos, table)
                if self.q_scaled:
                    q = g.scale(q)
                k = g.rope(k, pos, table)
            bo = b.of(il, "attn_output.bias") if self.output_bias else None
            cur = b.kv(
                il,
                k,
                v,
                q,
                window if slides and self.swa else mask,
                b.of(il, "attn_output.weight"),
                bo,
                softcap=self.softcap,
            )
            attended = b.of(il, "post_attention_norm.weight") if self.post else None
            if attended is not None and self.qkv != "glm4":
                cur = b.norm(cur, attended)
            if last:
                rows = ids if ids is not None else b.output_ids()
                cur = g.get_rows(cur, rows)
                start = g.get_rows(start, rows)
                if self.ffn in ("parallel", "stablelm"):
                    normed = g.get_rows(normed, rows)
            if attended is not None and self.qkv == "glm4":
                cur = b.norm(cur, attended)
            if self.depth:
                cur = g.scale(cur)
            cur = _FFN[self.ffn](b, il, cur, start, normed, self)
        cur = b.head(cur, self.head_kind, self.head_scaled)
        return Tensor("SOFTCAP", "f32", cur.ne, (cur,)) if self.capped else cur


# queries, keys and values


def _grouped(b: Builder, il: int, cur: Tensor, normed: str) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = b.qkv(il, cur)
    return (*_headed(b, il, q, k, normed), v)


def _headed(b: Builder, il: int, q: Tensor, k: Tensor, normed: str) -> tuple[Tensor, Tensor]:
    g, hp = b.graph, b.hp
    headed = []
    for tensor, heads, part in ((q, hp.n_head(il), "q"), (k, hp.n_head_kv(il), "k")):
        made = g.reshape(tensor, hp.head_k(il), heads, b.tokens)
        # normed per head, where the family has such norms
        weight = b.of(il, f"attn_{part}_norm.weight") if normed else None
        headed.append(made if weight is None else b.norm(made, weight, None, normed, il))
    return headed[0], headed[1]


def _plain(b: Builder, il: int, cur: Tensor, normed: str) -> tuple[Tensor, Tensor, Tensor]:
    made = []
    for part in "qkv":
        one = b.graph.mul_mat(b.need(il, f"attn_{part}.weight"), cur)
        bias = b.of(il, f"attn_{part}.bias")
        made.append(one if bias is None else b.graph.add(one, bias))
    return (*_headed(b, il, made[0], made[1], normed), made[2])


def _copied(b: Builder, il: int, cur: Tensor, normed: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q, K and V of one matrix, each copied out of its result."""
    g, hp = b.graph, b.hp
    both = g.mul_mat(b.need(il, "attn_qkv.weight"), cur)
    bias = b.of(il, "attn_qkv.bias")
    if bias is not None:
        both = g.add(both, bias)
    # rows of the result: Q, then K and V
    wide, width = hp.head_k(il) * hp.n_head(il), hp.n_embd_v_gqa(il)
    q, k, v = (
        g.cont(g.view(both, (size, b.tokens), (both.nb[1],), 4 * offset))
        for size, offset in ((wide, 0), (width, wide), (width, wide + width))
    )
    if normed == "flat":
        return g.reshape(q, hp.head_k(il), hp.n_head(il), b.tokens), k, v
    return (*_headed(b, il, q, k, ""), v)


def _glm4(b: Builder, il: int, cur: Tensor, normed: str) -> tuple[Tensor, Tensor, Tensor]:
    split = b.of(il, "attn_qkv.weight") is None
    return (_plain if split else _copied)(b, il, cur, "")


def _phi3(b: Builder, il: int, cur: Tensor, normed: str) -> tuple[Tensor, Tensor, Tensor]:
    g, hp = b.graph, b.hp
    fused = b.of(il, "attn_qkv.weight")
    if fused is None:
        return _plain(b, il, cur, "")
    both = g.mul_mat(fused, cur)
    head, n = hp.head_k(il), b.tokens
    q = g.view(both, (head, hp.n_head(il), n), (4 * head, both.nb[1]))
    k = g.view(both, (head, hp.n_head_kv(il), n), (4 * head, both.nb[1]), 4 * hp.n_embd)
    v = g.view(both, (hp.n_embd_v_gqa(il), n), (both.nb[1],), 4 * (hp.n_embd + hp.n_embd_v_gqa(il)))
    return q, k, v


def _openelm(b: Builder, il: int, cur: Tensor, normed: str) -> tuple[Tensor, Tensor, Tensor]:
    g, hp = b.graph, b.hp
    head, heads, kv = hp.head_k(il), hp.n_head(il), hp.n_head_kv(il)
    both = g.reshape(g.mul_mat(b.need(il, "attn_qkv.weight"), cur), head, heads + 2 * kv, b.tokens)
    q, k, v = (
        g.cont(g.view(both, (head, count, b.tokens), (both.nb[1], both.nb[2]), both.nb[1] * first))
        for count, first in ((heads, 0), (kv, heads), (kv, heads + kv))
    )
    q = b.norm(q, b.of(il, "attn_q_norm.weight"))
    k = b.norm(k, b.of(il, "attn_k_norm.weight"))
    return q, k, g.reshape(v, head * kv, b.tokens)


def _minimax(b: Builder, il: int, cur: Tensor, normed: str) -> tuple[Tensor, Tensor, Tensor]:
    g, hp = b.graph, b.hp
    q, k, v = (g.mul_mat(b.need(il, f"attn_{part}.weight"), cur) for part in "qkv")
    q = b.norm(q, b.of(il, "attn_q_norm.weight"))
    k = b.norm(k, b.of(il, "attn_k_norm.weight"))
    return (
        g.reshape(q, hp.head_k(il), hp.n_head(il), b.tokens),
        g.reshape(k, hp.head_k(il), hp.n_head_kv(il), b.tokens),
        v,
    )


_QKV = {
    "grouped": _grouped,
    "plain": _plain,
    "copied": _copied,
    "glm4": _glm4,
    "phi3": _phi3,
    "openelm": _openelm,
    "whole": lambda b, il, cur, _: b.qkv_normed(il, cur),
    "minimax": _minimax,
}


# feed forward networks, with both sums


def _simple(
    b: Builder, il: int, cur: Tensor, start: Tensor, normed: Tensor, row: Written
) -> Tensor:
    inp = b.graph.add(cur, start)
    cur = b.ffn(il, inp, b.of(il, "ffn_norm.weight"), row.kind, row.parallel)
    after = b.of(il, "post_ffw_norm.weight") if row.post else None
    if after is not None:
        cur = b.norm(cur, after)
    if row.depth:
        cur = b.graph.scale(cur)
    return b.graph.add(cur, inp)


def _swapped(
    b: Builder, il: int, cur: Tensor, start: Tensor, normed: Tensor, row: Written
) -> Tensor:
    """Build what _simple builds, with the sums' sources in another order (phi3, openelm)."""
    g = b.graph
    inp = g.add(cur, start) if b.architecture == "phi3" else g.add(start, cur)
    cur = b.ffn(il, inp, b.of(il, "ffn_norm.weight"), row.kind, row.parallel)
    return g.add(inp, cur) if b.architecture == "phi3" else g.add(cur, inp)


def _falcon(
    b: Builder, il: int, cur: Tensor, start: Tensor, normed: Tensor, row: Written
) -> Tensor:
    # attention and the network read the same norm
    g = b.graph
    return g.add(g.add(b.ffn(il, normed, None, row.kind, row.parallel), cur), start)


def _stablelm(
    b: Builder, il: int, cur: Tensor, start: Tensor, normed: Tensor, *_: object
) -> Tensor:
    g, weight = b.graph, b.of(il, "ffn_norm.weight")
    inp = g.add(cur, start)
    cur = normed if weight is None else b.norm(inp, weight, b.of(il, "ffn_norm.bias"), "ln", il)
    return g.add(b.ffn(il, cur), inp)


def _arctic(b: Builder, il: int, cur: Tensor, start: Tensor, *_: object) -> Tensor:
    g = b.graph
    # a dense network on the sum, and experts on the layer's input
    inp = g.add(cur, start)
    out = g.add(b.ffn(il, inp, b.of(il, "ffn_norm.weight")), inp)
    cur = b.moe(il, b.norm(start, b.of(il, "ffn_norm_exps.weight")), _NORMALISED)
    return g.add(cur, out)


def _dots1(b: Builder, il: int, cur: Tensor, start: Tensor, *_: object) -> Tensor:
    g = b.graph
    inp = g.add(cur, start)
    cur = b.norm(inp, b.of(il, "ffn_norm.weight"))
    if b.of(il, "ffn_gate_inp.weight") is None:
        return g.add(b.ffn(il, cur), inp)
    routed = b.moe(il, cur, BY_KEYS)
    return g.add(g.add(routed, b.ffn(il, cur, suffix="_shexp")), inp)


def _qwen2moe(b: Builder, il: int, cur: Tensor, start: Tensor, *_: object) -> Tensor:
    g = b.graph
    inp = g.add(cur, start)
    cur = b.norm(inp, b.of(il, "ffn_norm.weight"))
    routed = b.moe(il, cur, Experts(bias=False))
    made = g.mul_mat(b.need(il, "ffn_gate_inp_shexp.weight"), cur)
    # silu(x) / x is the sigmoid of x
    gate = g.div(g.unary("SILU", made), made)
    shared = g.mul(b.ffn(il, cur, suffix="_shexp"), gate)
    return g.add(g.add(routed, shared), inp)


def _minimax_ffn(b: Builder, il: int, cur: Tensor, start: Tensor, *_: object) -> Tensor:
    inp = b.graph.add(cur, start)
    how = Experts(normalised=True, gating="header")
    return b.std_moe(il, inp, b.of(il, "ffn_norm.weight"), how)


_FFN: dict[str, Callable[..., Tensor]] = {
    "plain": _simple,
    "swapped": _swapped,
    "parallel": _falcon,
    "stablelm": _stablelm,
    "arctic": _arctic,
    "dots1": _dots1,
    "qwen2moe": _qwen2moe,
    "minimax": _minimax_ffn,
}


def _command_r(b: Builder) -> Tensor:
    g, hp = b.graph, b.hp
    cur = b.embeddings()
    pos, mask = b.positions(), b.mask()
    for il in range(hp.n_layer):
        out = b.std_attention(il, cur, pos, None, mask, kind="ln")
        # attention and the network read the same input, so rows are left out of both
        if il == hp.n_layer - 1 and b.tokens > 1:
            ids = b.output_ids()
            out, cur = g.get_rows(out, ids), g.get_rows(cur, ids)
        cur = b.ffn(il, cur, b.of(il, "attn_norm.weight"), norm_kind="ln", extra=out)
    return b.head(cur, "ln", scaled=bool(hp.f_logit_scale))


FAMILIES: dict[str, Family] = {
    "deepseek2": deepseek2,
    "gemma4": gemma4,
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), qwen3next),
    **dict.fromkeys(("llama", "llama4", "granite", "granitemoe"), _llama),
    "mistral3": Standard(moe=Experts(normalised=True), factors=True),
    "qwen3": Standard(),
    "qwen3vl": Standard(),
    "seed_oss": Standard(norm="post_attention_norm", ids_always=True),
    "qwen3moe": Standard(moe=_NORMALISED, late_ids=True),
    "mellum": Standard(moe=_NORMALISED, swa="layers"),
    "gpt-oss": Standard(
        moe=Experts("SWIGLU_OAI", gating="weight", bias=False),
        swa="even",
        norm="post_attention_norm",
        sinks=True,
    ),
    "ernie4_5-moe": Standard(moe=Experts(normalised=True, shared=True)),
    "glm4moe": Standard(
        moe=Experts(normalised=True, scaled=True, gating="header", shared=True),
        norm="post_attention_norm",
    ),
    "muse-glimmer": Standard(input_norm=True, swa="layers", rope_by_swa=True, post=True),
    "command-r": _command_r,
    "qwen2": Written(),
    "xverse": Written(output_bias=False),
    "qwen2moe": Written(ffn="qwen2moe"),
    "arctic": Written(ffn="arctic", output_bias=False),
    "minicpm": Written(scale_in=True, depth=True, head_scaled=True),
    "ernie4_5": Written(qkv="plain", output_bias=False, ids_first=True),
    "dots1": Written(qkv="plain", ffn="dots1", normed_heads="rms"),
    "smollm3": Written(qkv="whole", rope="steps", ids_first=True),
    "minimax-m2": Written(qkv="minimax", ffn="minimax", ids_first=True),
    "starcoder2": Written("GELU", parallel=False, norm="ln", head_kind="ln"),
    "gemma": Written("GELU", q_scaled=True, scale_in=True, output_bias=False),
    "gemma2": Written(
        "GELU",
        q_scaled=True,
        scale_in=True,
        swa="even",
        post=True,
        output_bias=False,
        softcap=True,
        capped=True,
    ),
    "gemma3": Written("GELU", qkv="whole", scale_in=True, swa="six", post=True, output_bias=False),
    "phi3": Written(
        "SWIGLU", parallel=False, qkv="phi3", q_scaled=True, factors=True, ffn="swapped"
    ),
    "glm4": Written("SWIGLU", parallel=False, qkv="glm4", post=True, output_bias=False),
    "qwen": Written(qkv="copied", output_bias=False),
    "openelm": Written(qkv="openelm", output_bias=False, ffn="swapped"),
    "stablelm": Written(
        norm="ln", head_kind="ln", output_bias=False, normed_heads="ln", ffn="stablelm"
    ),
    "falcon": Written(
        "GELU",
        parallel=False,
        norm="ln",
        head_kind="ln",
        qkv="copied",
        output_bias=False,
        ffn="parallel",
    ),
    "gpt2": Written(
        "GELU",
        parallel=False,
        norm="ln",
        head_kind="ln",
        qkv="copied",
        rope="none",
        embedded=True,
        normed_heads="flat",
    ),
    "jais": Written(
        norm="ln", head_kind="ln", qkv="copied", rope="none", positions=False, normed_heads="flat"
    ),
}
