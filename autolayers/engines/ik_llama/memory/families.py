"""ik_llama.cpp's graphs by architecture (src/graphs/, 8337e4cd): one row each."""

from __future__ import annotations

from ....records import replace
from .delta import DeltaNet
from .gemma4 import Gemma4Family, gemma4_qkv
from .graph import Builder, Experts, Family, never
from .latent import Latent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ....ggml.tensor import Tensor
    from ....model.hparams import Hparams

    Made = tuple[Tensor, Tensor, Tensor]


def _slides(hp: Hparams, il: int) -> bool:
    return hp.is_swa(il)


def _slides_not(hp: Hparams, il: int) -> bool:
    return not hp.is_swa(il)


def _even(hp: Hparams, il: int) -> bool:
    return il % 2 == 0


def _but_every_sixth(hp: Hparams, il: int) -> bool:
    return (il + 1) % 6 != 0


# n_no_rope_layer_step of llama4 and smollm3
def _but_every_fourth(hp: Hparams, il: int) -> bool:
    return (il + 1) % 4 != 0


# queries, keys and values


def _one_by_one(b: Builder, il: int, cur: Tensor) -> Made:
    """Return Q, K and V of three matrices, each with its bias at once."""
    q, k, v = (b.linear(il, f"attn_{part}", cur) for part in "qkv")
    return b.by_head(il, q, "q"), b.by_head(il, k, "k"), v


def _whole_norms(b: Builder, il: int, cur: Tensor) -> Made:
    """Return Q, K and V, with one norm over all heads (minimax-m2)."""
    head, n = b.hp.head_k(il), b.tokens
    q, k, v = (b.mul_mat(il, f"attn_{part}", cur) for part in "qkv")
    q, k = b.normed(il, q, "attn_q_norm"), b.normed(il, k, "attn_k_norm")
    q, k = (b.graph.reshape(part, head, part.ne[0] // head, n) for part in (q, k))
    return q, k, v


def _viewed(b: Builder, il: int, cur: Tensor) -> Made:
    """Return views of one matrix's result."""
    g, hp, n = b.graph, b.hp, b.tokens
    both = b.mul_mat(il, "attn_qkv", cur)
    head, width = hp.head_k(il), hp.n_embd_v_gqa(il)
    q = g.view(both, (head, hp.n_head(il), n), (4 * head, both.nb[1]))
    k = g.view(both, (head, hp.n_head_kv(il), n), (4 * head, both.nb[1]), 4 * hp.n_embd)
    return q, k, g.view(both, (width, n), (both.nb[1],), 4 * (hp.n_embd + width))


def _copied(b: Builder, il: int, cur: Tensor) -> Made:
    """Return Q, K and V of one matrix, each copied out of its result."""
    g, hp = b.graph, b.hp
    both = b.linear(il, "attn_qkv", cur)
    # rows of the result: Q, then K and V
    wide, width = hp.head_k(il) * hp.n_head(il), hp.n_embd_v_gqa(il)
    q, k, v = (
        g.cont(g.view(both, (size, b.tokens), (both.nb[1],), 4 * offset))
        for size, offset in ((wide, 0), (width, wide), (width, wide + width))
    )
    return b.by_head(il, q, "q"), k if b.row.rope is never else b.by_head(il, k, "k"), v


def _copied_by_head(b: Builder, il: int, cur: Tensor) -> Made:
    g, hp = b.graph, b.hp
    head, heads, kv = hp.head_k(il), hp.n_head(il), hp.n_head_kv(il)
    both = g.reshape(b.mul_mat(il, "attn_qkv", cur), head, heads + 2 * kv, b.tokens)
    q, k, v = (
        g.cont(g.view(both, (head, count, b.tokens), both.nb[1:3], both.nb[1] * first))
        for count, first in ((heads, 0), (kv, heads), (kv, heads + kv))
    )
    q, k = b.normed(il, q, "attn_q_norm"), b.normed(il, k, "attn_k_norm")
    return q, k, g.reshape(v, head * kv, b.tokens)


# layers in which more than the sum reads attention's result


class _Falcon(Family):
    def layer(self, b: Builder, il: int, start: Tensor) -> Tensor:
        # attention and the network read the same norm
        cur, start, normed = b.attention(il, start)
        return b.graph.add(b.graph.add(b.ffn(il, normed), cur), start)


class _StableLm(Family):
    def layer(self, b: Builder, il: int, start: Tensor) -> Tensor:
        cur, start, normed = b.attention(il, start)
        inp = b.graph.add(cur, start)
        # as _Falcon without a norm of its own
        with_norm = b.of(il, "ffn_norm") is not None
        cur = b.normed(il, inp, "ffn_norm") if with_norm else normed
        return b.graph.add(b.ffn(il, cur), inp)


class _Arctic(Family):
    def layer(self, b: Builder, il: int, start: Tensor) -> Tensor:
        # a dense network on the sum, and experts on the layer's input
        cur, start, _ = b.attention(il, start)
        out = b.ffn(il, b.graph.add(cur, start), "ffn_norm", add_input=True)
        return b.graph.add(b.moe(il, b.normed(il, start, "ffn_norm_exps")), out)


class _CommandR(Family):
    def layer(self, b: Builder, il: int, start: Tensor) -> Tensor:
        # attention and the network read the same input, so rows are left out of both
        cur, start, _ = b.attention(il, start, pick=False)
        out, start = b.picked(il, b.graph.add(cur, start), start)
        return b.graph.add(b.ffn(il, start, "attn_norm"), out)


_NORMALISED = Experts(normalised=True)
_LLAMA = Family(
    embed_scale=None,
    q_scale="key",
    moe=_NORMALISED,
    shexp="own",
    residual_scale="sum",
    logit_scale="logits",
)
# attention written out; rows are picked without regard to their number
_WRITTEN = Family(picks_one=True)
_GEMMA = replace(_WRITTEN, embed_scale=True, act="GELU")
_GPT = replace(_WRITTEN, norm="ln", act="GELU")  # layer norms, biases, two-matrix FFN
_GEMMA2 = replace(_GEMMA, attn_post_norm="all")
_DELTA = DeltaNet(ffn_norm="post_attention_norm", moe=_NORMALISED)
_BY_KEYS = Experts(normalised=None, scaled=True, gating="header")

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "granitemoe": _LLAMA,
    # three layers of four read chunks, with rope; the fourth has a temperature
    "llama4": replace(
        _LLAMA,
        rope=_but_every_fourth,
        window=_but_every_fourth,
        temperature=True,
        moe=Experts(gating="sigmoid", weighs_input=True),
    ),
    "mistral3": Family(moe=_NORMALISED),
    "qwen3": Family(),
    "qwen3vl": Family(),
    "qwen3moe": Family(moe=_NORMALISED),
    "seed_oss": Family(ffn_norm="post_attention_norm"),
    "mellum": Family(moe=_NORMALISED, window=_slides),
    "gpt-oss": Family(
        window=_even,
        ffn_norm="post_attention_norm",
        act="SWIGLU_OAI",
        moe=Experts(gating="weight"),
    ),
    "ernie4_5-moe": Family(moe=_NORMALISED),
    "glm4moe": Family(
        ffn_norm="post_attention_norm",
        moe=Experts(normalised=True, scaled=True, gating="header"),
    ),
    "muse-glimmer": Family(embed_norm=True, rope=_slides, window=_slides, attn_post_norm="picked"),
    "command-r": _CommandR(norm="ln", ffn_norm_kind="ln", logit_scale="normed"),
    "qwen3next": _DELTA,
    "qwen35": _DELTA,
    "qwen35moe": _DELTA,
    "gemma4": Gemma4Family(
        embed_scale=True,
        qkv=gemma4_qkv,
        rope_factors=_slides_not,
        window=_slides,
        attn_post_norm="picked",
        act="GELU",
        moe=_NORMALISED,
        final_cap=None,
    ),
    "deepseek2": Latent(picks_one=True, moe=_BY_KEYS, shexp="add"),
    "dots1": replace(_WRITTEN, qkv=_one_by_one, moe=_BY_KEYS, shexp="add"),
    "qwen2": _WRITTEN,
    "xverse": _WRITTEN,
    "qwen2moe": replace(_WRITTEN, moe=Experts(), shexp="div"),
    "arctic": _Arctic(picks_one=True, moe=_NORMALISED),
    "minicpm": replace(
        _WRITTEN,
        embed_scale=True,
        rope_factors=never,
        residual_scale="each",
        logit_scale="normed",
    ),
    "ernie4_5": replace(_WRITTEN, qkv=_one_by_one, wo_bias=False),
    "smollm3": replace(_WRITTEN, rope=_but_every_fourth),
    "minimax-m2": replace(
        _WRITTEN, qkv=_whole_norms, moe=Experts(normalised=True, gating="header")
    ),
    "gemma": replace(_GEMMA, q_scale="roped"),
    "gemma2": replace(_GEMMA2, q_scale="roped", window=_even, soft_cap=True, final_cap=True),
    "gemma3": replace(_GEMMA2, window=_but_every_sixth),
    "phi3": replace(_WRITTEN, qkv=_viewed, q_scale="roped", act="SWIGLU", ffn_residual_first=True),
    "glm4": replace(_WRITTEN, qkv=_one_by_one, attn_post_norm="picked", act="SWIGLU"),
    "qwen": replace(_WRITTEN, qkv=_copied),
    "openelm": replace(_WRITTEN, qkv=_copied_by_head, residual_first=True),
    "stablelm": _StableLm(picks_one=True, norm="ln"),
    "starcoder2": _GPT,
    "falcon": _Falcon(picks_one=True, norm="ln", qkv=_copied, act="GELU"),
    "gpt2": replace(_GPT, qkv=_copied, rope=never, positions=True),
    "jais": replace(_WRITTEN, norm="ln", qkv=_copied, rope=never),
}
