"""Experts: how they are chosen, run, weighted and summed (build_moe_ffn of src/llama-graph.cpp, as
modelled)."""

from __future__ import annotations

from ..ggml.tensor import Tensor
from ..records import dataclass
from .llm import SPLIT_GLU, Llm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from .llm import Activation

    Gating = Literal["softmax", "sigmoid", "softmax_weight", "sqrt_softplus"]

# llama_expert_gating_func_type; a file without the key means softmax
_GATING: dict[int, Gating] = {
    0: "softmax",
    1: "softmax",
    2: "sigmoid",
    3: "softmax_weight",
    4: "sqrt_softplus",
}

# llama_moe_cache_layer_experts
CACHED = ("ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
# tokens of a graph that reads cached experts (llama_moe_cache::impl::max_batch)
_MOST_CACHED = 32


@dataclass(frozen=True)
class Routing:
    """How experts are chosen, run and weighted: the arguments of llama.cpp's build_moe_ffn that an
    architecture fixes.

    None: the file's key decides. Tensors are blk.<il>.<name>; a tensor whose name is None is not
    used.
    """

    gating: Gating | None = None  # expert_gating_func
    # the chosen experts' weights are normed; expert_weights_norm
    norm_w: bool | None = None
    w_scale: float | None = None  # and scaled, 0 and 1: not; expert_weights_scale
    act: Activation = "silu"
    # the values ranked to choose experts; biased: the logits with their bias, not the probabilities
    select: Literal["probs", "logits", "biased", "sigmoid"] = "probs"
    weight_before: bool = False  # the weights are applied to the experts' input
    biases: bool = True  # biases of the experts are added, if present
    scales: bool = False  # NVFP4 scales of the experts are applied
    normed: str | None = None  # the gain of their results, which are normed before the weights
    up: str = "ffn_up_exps"
    gate: str | None = "ffn_gate_exps"
    down: str = "ffn_down_exps"
    gate_up: str | None = "ffn_gate_up_exps"
    probs_b: str | None = "exp_probs_b"  # added to the ranked values
    down_param: str | None = None  # "src1_f32": the product with `down` takes f32, not f16


def build_moe_ffn(
    llm: Llm,
    cur: Tensor,
    il: int,
    routing: Routing,
    *,
    probs_in: Tensor | None = None,
    selected_in: Tensor | None = None,
    n_expert: int = 0,
    n_expert_used: int = 0,
) -> Tensor:
    """Choose experts, run them, weight and sum them, in the order of llama.cpp's build_moe_ffn.

    `probs_in` are the router's logits if they are not of `cur`, `selected_in` the experts if a
    table chooses them; n_expert and n_expert_used are the model's unless given.
    """
    g, hp = llm.graph, llm.hparams
    n_used = n_expert_used or llm.n_expert_used
    n_embd, n = cur.ne[0], cur.ne[1]
    logits = llm.linear(il, "ffn_gate_inp", cur) if probs_in is None else probs_in
    # router, choice, experts, sum: each a step of build_moe_ffn
    selected, weights = _choose_experts(
        llm, logits, il, routing, n_expert or llm.n_expert, n_used, selected_in
    )
    # early, so that CUDA finds softmax, top-k and get_rows in a row and fuses them (topk-moe)
    if llm.rules.expands_weights:
        g.expand(weights)
    # one row per token, which mul_mat_id repeats for each of its experts
    cur = g.reshape(cur, n_embd, 1, n)
    # llama4
    if routing.weight_before:
        cur = g.mul(g.repeat(cur, n_embd, n_used, n, 1), weights)
    experts = _run_experts(llm, cur, il, routing, selected)
    if routing.normed is not None:
        experts = g.rms_norm(g.mul(experts, llm.need_layer(il, routing.normed)))
    if not routing.weight_before:
        experts = g.mul(experts, weights)
    if llm.rules.expands_views:
        g.expand(experts)
    return _summed(llm, experts, hp.n_expert_used(il))


def build_latent_moe(
    llm: Llm,
    cur: Tensor,
    il: int,
    routing: Routing,
    prefix: str = "ffn_latent",
    *,
    before: str = "",
    after: str = "",
    n_expert_used: int = 0,
    optional: bool = False,
) -> Tensor:
    """Build experts that read and write a smaller vector, which the matrices of `prefix` make, and
    a router that reads the whole one; `before`, `after`: norms of it. `optional`: a file may have
    none of these."""

    def step(name: str, x: Tensor) -> Tensor:
        absent = optional and llm.layer_weight(il, name) is None
        return x if absent else llm.linear(il, name, x)

    logits, small = llm.linear(il, "ffn_gate_inp", cur), step(f"{prefix}_down", cur)
    if before:
        small = llm.rms_norm(il, before, small)
    out = build_moe_ffn(llm, small, il, routing, probs_in=logits, n_expert_used=n_expert_used)
    if after and llm.layer_weight(il, after) is not None:
        out = llm.rms_norm(il, after, out)
    return step(f"{prefix}_up", out)


def _summed(llm: Llm, experts: Tensor, n_used: int) -> Tensor:
    """Return the sum of the chosen experts' weighted outputs, a view of each."""
    g = llm.graph
    # views and additions, not one ggml_sum_rows: each sum is a node that the allocator places
    n_embd, _, n = experts.ne[:3]
    views = []
    for i in range(n_used):
        # expanded before the additions, so that all views are nodes in a row (moe-reduce fusion)
        views.append(g.view(experts, (n_embd, n), (experts.nb[2],), i * experts.nb[1]))
        if llm.rules.expands_views:
            g.expand(views[-1])
    out = views[0]
    for v in views[1:]:
        out = g.add(out, v)
        if llm.rules.expands_sums:
            g.expand(out)
    # one view has gaps, and callers want a tensor without
    return g.cont(out) if len(views) == 1 else out


def _choose_experts(
    llm: Llm,
    logits: Tensor,
    il: int,
    routing: Routing,
    n_expert: int,
    n_used: int,
    selected_in: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Build the first half of build_moe_ffn: (the chosen experts, their weights [1, n_used,
    n_tokens])."""
    g, hp, n = llm.graph, llm.hparams, logits.ne[1]
    gating = routing.gating or _GATING[hp.expert_gating_func]
    bias = llm.layer_weight(il, "ffn_gate_inp", "bias") if routing.biases else None
    # gpt-oss: the router has a bias
    if bias is not None:
        logits = g.add(logits, bias)
    probs = _probabilities(llm, logits, gating)
    # DeepSeek-V3 chooses by biased values and weighs by unbiased ones
    ranked = _ranked(llm, logits, probs, il, routing)
    # group-limited routing, as DeepSeek-V3 has it
    if hp.n_expert_groups > 1 and llm.rules.groups_experts:
        ranked = _best_groups(llm, ranked, n_expert)
    selected = g.argsort_top_k(ranked, n_used) if selected_in is None else selected_in
    # grovemoe's chunk experts: one of them serves a group of experts
    if n_expert != llm.n_expert:
        selected = g.cast(g.scale(g.cast(selected, "f32")), "i32")
    # probabilities as a column of each token, from which get_rows picks the chosen
    weights = g.get_rows(g.reshape(probs, 1, llm.n_expert, n), selected)
    # gpt-oss: softmax over the chosen experts only
    if gating == "softmax_weight":
        weights = g.reshape(g.soft_max(g.reshape(weights, n_used, n)), 1, n_used, n)
    # The chosen experts' weights [1, n_used, n_tokens], normalised and scaled if the model is.
    # the sum below goes by the key, not by n_used: llama.cpp chooses all experts while it warms up,
    # and avoids that many additions
    g, hp = llm.graph, llm.hparams
    norm_w = hp.expert_weights_norm if routing.norm_w is None else routing.norm_w
    w_scale = hp.expert_weights_scale if routing.w_scale is None else routing.w_scale
    if norm_w:
        weights = _normalised(llm, g.reshape(weights, *weights.ne[1:3]))
    scaled = weights if w_scale in (0.0, 1.0) else g.scale(weights)
    return selected, scaled


def _probabilities(llm: Llm, logits: Tensor, gating: str) -> Tensor:
    """Return the router's logits after its activation, if it has one before the choice."""
    g = llm.graph
    if gating == "softmax":
        return g.soft_max(logits)
    if gating == "sigmoid":
        return g.unary("SIGMOID", logits)
    if gating == "sqrt_softplus":
        return g.sqrt(g.unary("SOFTPLUS", logits))
    return logits


def _ranked(llm: Llm, logits: Tensor, probs: Tensor, il: int, routing: Routing) -> Tensor:
    """Return the values by which experts are chosen."""
    g, ranked = llm.graph, probs
    if routing.probs_b is not None:
        extra = llm.layer_weight(il, routing.probs_b, "bias")
        if extra is None:
            extra = llm.layer_weight(il, routing.probs_b)
        if extra is not None:
            ranked = g.add(logits if routing.select == "biased" else probs, extra)
    if routing.select == "logits":
        return logits
    return g.unary("SIGMOID", logits) if routing.select == "sigmoid" else ranked


def _normalised(llm: Llm, weights: Tensor) -> Tensor:
    """Return the chosen experts' weights [n_used, n_tokens], divided by their sum and reshaped to
    [1, n_used, n_tokens]."""
    g, total = llm.graph, llm.graph.sum_rows(weights)
    # by the smallest f16, against a division by zero
    if llm.rules.clamps_weights:
        total = g.clamp(total)
    return g.reshape(g.div(weights, total), 1, *weights.ne[:2])


def _best_groups(llm: Llm, ranked: Tensor, n_expert: int) -> Tensor:
    """Return the scores with -inf for the experts of all but the best groups (n_group_used of
    n_expert_groups)."""
    g, hp, n = llm.graph, llm.hparams, ranked.ne[1]
    n_groups = hp.n_expert_groups
    # a group is scored by the sum of its two best experts
    selection = g.reshape(ranked, n_expert // n_groups, n_groups, n)
    scores = g.argsort_top_k(selection, 2)
    scores = g.get_rows(g.reshape(selection, 1, *selection.ne[:3]), scores)
    scores = g.sum_rows(g.reshape(scores, *scores.ne[1:]))
    scores = g.reshape(scores, scores.ne[1], scores.ne[2])
    chosen = g.argsort_top_k(scores, hp.n_group_used)
    # the scores of the best groups' experts
    picked = g.get_rows(selection, chosen)
    # all -inf, then the chosen groups are written back
    return g.reshape(g.set_rows(g.fill(selection), picked, chosen), n_expert, n)


class _Chosen:
    """The matrices of the chosen experts of one layer, for each token its own."""

    def __init__(self, llm: Llm, il: int, routing: Routing, selected: Tensor) -> None:
        self.llm, self.il, self.routing, self.selected = llm, il, routing, selected
        names = (routing.up, routing.gate, routing.down, routing.gate_up)
        # positions of the chosen experts in the expert cache, if all of them are read from it
        self.slots = _slots(llm, il, names, selected) if llm.slots else None

    def product(self, weight: Tensor, x: Tensor, name: str, param: str | None = None) -> Tensor:
        """Return `x` multiplied with a matrix, and with the scale of that name."""
        scale = self.llm.layer_weight(self.il, name, "scale") if self.routing.scales else None
        return self.llm.build_lora_mm_id(
            weight, x, self.selected, scale, param, self.slots, self.il
        )

    def biased(self, x: Tensor, name: str | None) -> Tensor:
        if name is None or not self.routing.biases:
            return x
        bias = self.llm.layer_weight(self.il, name, "bias")
        return x if bias is None else self.llm.graph.add_id(x, bias, self.selected)


def _run_experts(llm: Llm, cur: Tensor, il: int, routing: Routing, selected: Tensor) -> Tensor:
    """Build the second half of build_moe_ffn: each chosen expert's output, [n_embd, n_used,
    n_tokens]."""
    g = llm.graph
    chosen = _Chosen(llm, il, routing, selected)
    # gate and up as one matrix: one product, then two views of its halves
    merged = llm.layer_weight(il, routing.gate_up) if routing.gate_up is not None else None
    gate = None
    if merged is not None:
        both = chosen.biased(chosen.product(merged, cur, routing.up), routing.gate_up)
        n_ff = both.ne[0] // 2
        cur, up = (
            g.view(both, (n_ff, *both.ne[1:3]), both.nb[1:3], at) for at in (0, n_ff * both.nb[0])
        )
    else:
        # up before gate: the order of the nodes in llama.cpp
        up = chosen.biased(
            chosen.product(llm.need_layer(il, routing.up), cur, routing.up), routing.up
        )
        if routing.gate is not None:
            gate = llm.layer_weight(il, routing.gate)
        if gate is not None and routing.gate is not None:
            cur = chosen.product(gate, cur, routing.gate)
        else:
            cur = up
        cur = chosen.biased(cur, routing.gate)
    # llama.cpp reads the bound only where there is a gate
    limit = llm.swiglu_limit("exp", il) if gate is not None else 0.0
    cur = _activate_experts(
        llm, cur, up, routing.act, gate is not None or merged is not None, limit
    )
    if llm.rules.expands_gates:
        g.expand(cur)
    return chosen.biased(
        chosen.product(llm.need_layer(il, routing.down), cur, routing.down, routing.down_param),
        routing.down,
    )


def _slots(llm: Llm, il: int, names: tuple[str | None, ...], selected: Tensor) -> Tensor | None:
    """Return where the expert cache has the chosen experts, read from the layer's map in RAM
    (build_moe_cache_slots); None where they are not read from the cache."""
    g, n = llm.graph, llm.slots.get(il, 0)
    n_used, n_tokens = selected.ne[:2]
    # all experts that these tokens may choose need a slot at the same time
    if not 0 < n_tokens <= _MOST_CACHED or min(n_tokens * n_used, llm.n_expert) > n:
        return None
    # a layer with expert tensors that the cache does not hold reads all of them in RAM
    others = [name for name in names if name is not None and name not in CACHED]
    if any(llm.layer_weight(il, name) is not None for name in others):
        return None
    # the chosen ids are a view of argsort's result, which has all experts
    ids = selected if selected.contiguous() else g.cont(selected)
    made = Tensor("NONE", "i32", (1, llm.n_expert, 1, 1))
    made.name, made.weight, made.buffer = f"moe_cache.slot_map-{il}", True, llm.host_buffer
    slots = g.get_rows(made, g.reshape(ids, ids.nelements))
    device = llm.dev_layer[il]
    # then llama.cpp reads the experts where they are
    if not llm.backends[device].supports_op(slots):
        return None
    slots.pinned = device
    return g.reshape(slots, n_used, n_tokens)


def _activate_experts(
    llm: Llm, cur: Tensor, up: Tensor, act: Activation, has_gate: bool, limit: float
) -> Tensor:
    g = llm.graph
    if act == "silu" and limit > 1e-6:
        if llm.row.swiglu_clamp in ("experts", "fused"):
            return g.glu("SWIGLU_CLAMP", cur, up)
        up = g.clamp(up)
        return g.mul(g.clamp(g.unary("SILU", cur)), up)
    if act == "situ":
        return situ(llm, cur, up)
    if act == "swiglu_oai":
        return g.glu("SWIGLU_OAI", cur, up)
    if act == "relu_sqr":
        return g.sqr(g.unary("RELU", cur))
    if has_gate and llm.rules.glu_op:
        return g.glu(SPLIT_GLU[act], cur, up)
    cur = g.unary(act.upper(), cur)
    return g.mul(cur, up) if has_gate else cur


def situ(llm: Llm, gate: Tensor, up: Tensor) -> Tensor:
    """Mirror LLM_FFN_SITU: beta tanh(gate / beta) sigmoid(gate) times up, which is bounded in the
    same way."""
    g = llm.graph
    cur = g.mul(g.scale(g.unary("TANH", g.scale(gate))), g.unary("SIGMOID", gate))
    if llm.hparams.situ_linear_beta > 0.0:
        up = g.scale(g.unary("TANH", g.scale(up)))
    return g.mul(cur, up)
