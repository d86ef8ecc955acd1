"""Norms over groups, values from routed experts, a softplus gate on attention's result
(src/models/k2-horizon.cpp)."""

from __future__ import annotations

from ...ggml.tensor import Tensor
from ...records import dataclass
from ..decoder import Decoder
from ..experts import Routing
from ..llm import Llm, Qkv


def group_norm(llm: Llm, cur: Tensor, weight: Tensor | None) -> Tensor:
    """Build an RMS norm of each group of the width, then one weight for all of it
    (k2_horizon_group_rms_norm)."""
    g, (width, n) = llm.graph, cur.ne[:2]
    groups = llm.hparams.n_norm_groups or 1
    cur = g.reshape(g.rms_norm(g.reshape(cur, width // groups, groups, n)), width, n)
    return cur if weight is None else g.mul(cur, weight)


@dataclass(frozen=True)
class K2Horizon(Decoder):
    def normed(
        self, llm: Llm, cur: Tensor, il: int, name: str | None, pinned: bool = True
    ) -> Tensor:
        return cur if name is None else group_norm(llm, cur, llm.layer_weight(il, name))

    def head(self, llm: Llm, cur: Tensor) -> Tensor | None:
        return llm.finish(group_norm(llm, cur, llm.weight("output_norm.weight")))

    def heads(self, llm: Llm, cur: Tensor, il: int) -> Qkv:
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        head, heads_kv = hp.head_k(il), hp.n_head_kv(il)
        q, k = llm.linear(il, "attn_q", cur, scale=True), llm.linear(il, "attn_k", cur, scale=True)
        # MoVA: layers with experts may have experts for V as well
        routed = llm.layer_weight(il, "attn_v_exps") is not None
        v = self.routed_value(llm, cur, il) if routed else llm.linear(il, "attn_v", cur, scale=True)
        q = self.head_normed(llm, g.reshape(q, head, hp.n_head(il), n), il, "attn_q_norm")
        k = self.head_normed(llm, g.reshape(k, head, heads_kv, n), il, "attn_k_norm")
        return q, k, g.reshape(v, hp.head_v(il), heads_kv, n)

    def gated(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        if llm.layer_weight(il, "attn_gate") is None:
            return out
        g = llm.graph
        # log2(1 + 2^x), a softplus with beta = ln 2: scaled before it and after it
        opened = g.scale(llm.linear(il, "attn_gate", cur, scale=True))
        return g.mul(out, g.scale(g.unary("SOFTPLUS", opened)))

    def head_normed(self, llm: Llm, t: Tensor, il: int, name: str) -> Tensor:
        """Norm heads with a weight for each, which a file may have flat (TENSOR_ALLOW_RESHAPE)."""
        weight = llm.layer_weight(il, name)
        if weight is None:
            return t
        head, heads = t.ne[:2]
        if weight.ne[1] != heads:
            weight.ne = (head, heads, 1, 1)
            weight.nb = (weight.nb[0], head * weight.nb[0], *weight.nb[2:])
        return llm.build_norm(t, weight, None, "rms", il)

    def routed_value(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Return the weighted sum of the outputs of each token's value experts
        (build_routed_value)."""
        g, hp, (width, n) = llm.graph, llm.hparams, cur.ne[:2]
        n_used = hp.n_value_expert_used
        logits = llm.linear(il, "attn_v_gate", cur)
        # LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX, otherwise sigmoid
        softmax = hp.expert_gating_func == 1
        probs = g.soft_max(logits) if softmax else g.unary("SIGMOID", logits)
        # the bias decides which experts are chosen, not their weights
        bias = llm.layer_weight(il, "attn_v_gate", "bias")
        selected = g.argsort_top_k(probs if bias is None else g.add(probs, bias), n_used)
        weights = g.get_rows(g.reshape(probs, 1, hp.n_value_expert, n), selected)
        if hp.expert_weights_norm:
            weights = g.reshape(weights, n_used, n)
            weights = g.reshape(g.div(weights, g.clamp(g.sum_rows(weights))), 1, n_used, n)
        if hp.expert_weights_scale not in (0.0, 1.0):
            weights = g.scale(weights)
        values = llm.build_lora_mm_id(
            llm.need_layer(il, "attn_v_exps"), g.reshape(cur, width, 1, n), selected
        )
        values = g.mul(g.unary("SILU", values), weights)
        views = []
        # the views before the sums, so that backends can fuse these
        for i in range(n_used):
            views.append(g.view(values, (values.ne[0], 1, n), values.nb[1:3], i * values.nb[1]))
            g.expand(views[-1])
        out = views[0]
        for view in views[1:]:
            out = g.add(out, view)
            g.expand(out)
        return g.cont(out) if n_used == 1 else out


BUILDERS = {
    "k2-horizon": K2Horizon(
        final_norm=None, ffn_bias=False, moe=Routing(biases=False, gate_up=None), shexp="add"
    )
}
