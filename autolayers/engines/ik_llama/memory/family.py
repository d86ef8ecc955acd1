"""A row of ik_llama.cpp's graphs (families.py), and the loop that reads it: the functions of
src/graphs/ (8337e4cd) that are written with the parts of graph.py.

    "qwen3": Family()

Steps whose tensors the file has not are left out, so a row says orders, activations and names.
"""

from __future__ import annotations

from ....records import dataclass
from .graph import Builder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from ....ggml.tensor import Tensor
    from ....model.hparams import Hparams

    Rule = Callable[[Hparams, int], bool]
    Qkv = Callable[[Builder, int, Tensor], tuple[Tensor, Tensor | None, Tensor | None]]


@dataclass(frozen=True)
class Experts:
    """How a token's experts are chosen and weighed: the arguments of llm_build_moe_ffn.
    `normalised` None, `gating` "header" and `scaled`: as the keys say; `gating` "weight": over the
    chosen ones alone; `weighs_input`: the weights are applied before them (llama4)."""

    normalised: bool | None = False
    scaled: bool = False
    gating: str = "softmax"
    weighs_input: bool = False


def always(hp: Hparams, il: int) -> bool:
    return True


def never(hp: Hparams, il: int) -> bool:
    return False


@dataclass(frozen=True)
class Family:
    """Fields with their meaning; the defaults make qwen3."""

    # before the layers
    embed_scale: bool | None = False  # None: if the key is set
    embed_norm: bool = False
    positions: bool = False  # learned positions are added

    # attention
    norm: Literal["rms", "ln"] = "rms"  # every norm of the model but llm_build_ffn's own
    qkv: Qkv = Builder.qkv  # how Q, K and V are made
    q_scale: Literal["", "key", "roped"] = ""  # Q is scaled: if the key is set, or after rope
    rope: Rule = always
    rope_factors: Rule = always
    temperature: bool = False  # a factor of Q in layers without rope
    window: Rule = never  # layers with the mask of a window
    soft_cap: bool = False
    wo_bias: bool = True
    # the norm of attention's output: of all rows, or of those that are picked in the last layer
    attn_post_norm: Literal["", "all", "picked"] = ""
    picks_one: bool = False  # rows are picked of a single one too
    residual_first: bool = False  # input + attention instead of attention + input

    # feed-forward
    ffn_norm: str = "ffn_norm"
    ffn_norm_kind: Literal["rms", "ln"] = "rms"
    act: str = "SILU"
    ffn_residual_first: bool = False
    moe: Experts | None = None  # in layers that have ffn_gate_inp
    # what adds shared experts and the input: llm_build_std_moe_ffn, or written out: the experts'
    # own input; both sums; with the shared gate as silu(x) / x
    shexp: Literal["std", "own", "add", "div"] = "std"
    # Granite scales the sums, MiniCPM what is added
    residual_scale: Literal["", "sum", "each"] = ""

    # after the layers
    logit_scale: Literal["", "normed", "logits"] = ""
    final_cap: bool | None = False  # logits are capped; None: if the key is set

    def __call__(self, b: Builder) -> Tensor:
        g, hp = b.graph, b.hp
        cur = self.embed(b)
        for il in range(hp.n_layer):
            cur = self.layer(b, il, cur)
        cur = b.head(cur)
        if self.logit_scale == "logits" and hp.f_logit_scale:
            cur = g.scale(cur)
        caps = hp.get("final_logit_softcapping") if self.final_cap is None else self.final_cap
        return g.like("SOFTCAP", cur) if caps else cur

    def embed(self, b: Builder) -> Tensor:
        """Mirror llm_build_inp_embd."""
        g = b.graph
        cur = g.get_rows(b.outside("token_embd"), b.inp_tokens)
        if self.embed_scale or (self.embed_scale is None and b.hp.f_embedding_scale):
            cur = g.scale(cur)
        if self.embed_norm:
            cur = g.rms_norm(cur)
        if self.positions:
            cur = g.add(cur, g.get_rows(b.outside("position_embd"), b.pos))
        return cur

    def layer(self, b: Builder, il: int, start: Tensor) -> Tensor:
        scales = self.residual_scale == "sum" and b.hp.f_residual_scale
        inp = self.attention(b, il, start)
        cur = self.ffn(b, il, b.graph.scale(inp) if scales else inp)
        return b.graph.scale(cur) if scales else cur

    def attention(self, b: Builder, il: int, start: Tensor) -> Tensor:
        return b.std_attention(il, start)

    def ffn(self, b: Builder, il: int, inp: Tensor) -> Tensor:
        """Return a layer's result, of the sum of attention and input."""
        g = b.graph
        if self.moe is not None and b.of(il, "ffn_gate_inp") is not None:
            return self._moe(b, il, inp)
        post, each = b.of(il, "post_ffw_norm"), self.residual_scale == "each"
        if post is None and not each and not self.ffn_residual_first:
            return b.ffn(il, inp, self.ffn_norm, add_input=True)
        cur = b.normed(il, b.ffn(il, inp, self.ffn_norm), "post_ffw_norm")
        cur = g.scale(cur) if each else cur
        return g.add(inp, cur) if self.ffn_residual_first else g.add(cur, inp)

    def _moe(self, b: Builder, il: int, inp: Tensor) -> Tensor:
        g = b.graph
        if self.shexp == "std" or (self.shexp == "add" and b.is_cut(il, "attn_output")):
            return b.std_moe(il, inp)
        cur = b.normed(il, inp, self.ffn_norm)
        routed = b.moe(il, cur)
        if self.shexp == "own":
            routed = g.add(routed, cur)
            if b.of(il, "ffn_up_shexp") is None:
                return routed
            return g.add(routed, b.ffn(il, cur, suffix="_shexp"))
        shared = b.ffn(il, cur, suffix="_shexp")
        if self.shexp == "div":
            made = b.mul_mat(il, "ffn_gate_inp_shexp", cur)
            # silu(x) / x is the sigmoid of x
            shared = g.mul(shared, g.div(g.unary("SILU", made), made))
        return g.add(g.add(routed, shared), inp)
