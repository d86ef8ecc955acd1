"""ik_llama.cpp's graph of a prompt; it reserves one: src/llama-build-context.cpp and src/graphs/,
8337e4cd. Each method of Builder mirrors the llm_build_* function of its name; what an architecture
does of them is its row, a Family (families.py). Steps whose tensors the file has not are left out,
so a row says orders, activations and names."""

from __future__ import annotations

from functools import reduce

from ....ggml.tensor import Graph, Tensor, row_size, type_size
from ....ggml.types import is_quantised
from ....records import dataclass
from .cache import latent_heads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

    from ....memory.context import Context
    from ....model import Model
    from ....model.hparams import Hparams
    from .. import Said

    Caches = Mapping[int, Mapping[str, Tensor]]
    Rule = Callable[[Hparams, int], bool]
    Qkv = Callable[["Builder", int, Tensor], tuple[Tensor, Tensor | None, Tensor | None]]

_MASK_ROWS = 16  # GGML_KQ_MASK_PAD


class Builder:
    """A graph. `row`: its architecture's; `weights`: by name, None where the file has none;
    `caches`: tensors k, v, s of each layer; `pin`: the backend of a layer, for norms that the
    builder gives to it; `alone`: the CPU is the only backend."""

    per_layer: Tensor | None = None  # embeddings of gemma4's layers

    def __init__(
        self,
        row: Family,
        model: Model,
        context: Context,
        settings: Said,
        mla: int,
        weights: Callable[[str], Tensor | None],
        caches: Caches,
        pin: Callable[[int], int],
        alone: bool,
    ) -> None:
        self.row, self.context, self.settings, self.mla = row, context, settings, mla
        self.w, self.caches, self.pin, self.alone = weights, caches, pin, alone
        self.architecture, self.hp = model.architecture, model.hparams
        self.latent = latent_heads(self.hp, self.architecture)
        self.tokens = min(context.n_ctx, context.n_ubatch)
        self.flash = context.flash_attn != "off"
        # a hybrid's V is never kept transposed
        self.hybrid = any(map(self.hp.is_recr, range(self.hp.n_layer)))
        # -khad and -vhad rotate what a quantised cache keeps
        self.turns_k = settings.k_hadamard and is_quantised(settings.type_k or context.type_k)
        self.turns_v = settings.v_hadamard and is_quantised(settings.type_v or context.type_v)
        # inputs: those that nothing reads are not in the graph
        self.graph = g = Graph()
        self.inp_tokens = g.input("inp_tokens", "i32", self.tokens)
        self.pos = g.input("inp_pos", "i32", self.tokens * self.hp.n_pos_per_embd)
        # build_inp_KQ_mask, build_inp_KQ_mask_swa: as many cells as the whole cache has
        rows = -(-self.tokens // _MASK_ROWS) * _MASK_ROWS
        self.mask, self.window = (
            g.input("KQ_mask", "f16" if self.flash else "f32", context.n_ctx, rows) for _ in "kw"
        )
        self.sequences = g.input("inp_s_seq_qnext", "i32", 1, self.tokens)
        self.temperature = g.input("inp_scale", "f32", 1, 1, self.tokens)
        # logits of all tokens of the reserved graph, unless -wgt gives their number
        self.ids = g.input("inp_out_ids", "i32", settings.logit_rows or self.tokens)

    # weights

    def of(self, il: int, name: str, kind: str = "weight") -> Tensor | None:
        return self.w(f"blk.{il}.{name}.{kind}".rstrip("."))

    def need(self, il: int, name: str, kind: str = "weight") -> Tensor:
        weight = self.of(il, name, kind)
        if weight is None:
            raise LookupError(f"blk.{il}.{name}")
        return weight

    def outside(self, name: str) -> Tensor:
        """Return a weight that no layer has."""
        weight = self.w(f"{name}.weight")
        if weight is None:
            raise LookupError(name)
        return weight

    def mul_mat(self, il: int, name: str, cur: Tensor) -> Tensor:
        return self.graph.mul_mat(self.need(il, name), cur)

    def linear(self, il: int, name: str, cur: Tensor) -> Tensor:
        """Return `cur` multiplied with a layer's matrix, with its bias if it has one."""
        cur, bias = self.mul_mat(il, name, cur), self.of(il, name, "bias")
        return cur if bias is None else self.graph.add(cur, bias)

    def is_cut(self, il: int, name: str, kind: str = "weight") -> bool:
        """Whether -sm graph cuts it."""
        return False

    def factors(self, il: int) -> Tensor | None:
        """Mirror build_rope_factors."""
        factors = self.w(f"rope_freqs.weight@{il}")
        if factors is not None:
            return factors
        # LongRoPE: the long factors once a sequence may outgrow the training context
        long = self.context.n_ctx // self.context.n_seq_max > self.hp.n_ctx_orig_yarn
        return self.w(f"rope_factors_{'long' if long else 'short'}.weight@{il}")

    # parts

    def norm(
        self,
        cur: Tensor,
        weight: Tensor | None,
        bias: Tensor | None = None,
        il: int = -1,
        kind: str = "",
    ) -> Tensor:
        """Mirror llm_build_norm."""
        g, kind = self.graph, kind or self.row.norm
        # one fused node, which llm_build_norm does not name, so that it is never pinned
        if kind == "rms" and weight is not None:
            cur = Tensor("FUSED_RMS_NORM", "f32", cur.ne, (cur, weight))
            return cur if bias is None else g.add(cur, bias)
        cur = g.norm(cur) if kind == "ln" else g.rms_norm(cur)
        if il >= 0:
            cur.pinned = self.pin(il)
        if weight is not None:
            cur = g.mul(cur, weight)
        return cur if bias is None else g.add(cur, bias)

    def normed(self, il: int, cur: Tensor, name: str) -> Tensor:
        """Return `cur` with a layer's norm; as it is if the file has none of this name."""
        weight = self.of(il, name)
        return cur if weight is None else self.norm(cur, weight, self.of(il, name, "bias"), il)

    def picked(self, il: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return, in the last layer, the rows whose logits are asked for."""
        if il != self.hp.n_layer - 1 or (self.tokens == 1 and not self.row.picks_one):
            return tensors
        return tuple([self.graph.get_rows(tensor, self.ids) for tensor in tensors])

    def up_gate(self, il: int, suffix: str, cur: Tensor) -> Tensor:
        """Mirror ggml_fused_up_gate."""
        up, gate = self.need(il, f"ffn_up{suffix}"), self.need(il, f"ffn_gate{suffix}")
        # ggml_fused_up_gate itself falls back to three nodes unless both weights have one
        # quantised type
        if not is_quantised(up.type) or up.type != gate.type or up.ne != gate.ne:
            one, two = self.graph.mul_mat(up, cur), self.graph.mul_mat(gate, cur)
            return self.graph.like("FUSED_MUL_UNARY", two, one)
        return Tensor("FUSED_UP_GATE", "f32", (up.ne[1], cur.ne[1], 1, 1), (up, gate, cur))

    def ffn(
        self, il: int, cur: Tensor, norm: str = "", suffix: str = "", add_input: bool = False
    ) -> Tensor:
        """Mirror llm_build_ffn."""
        g, start, kind = self.graph, cur, self.row.act
        weight = self.of(il, norm) if norm else None
        if weight is not None:
            cur = self.norm(cur, weight, None, il, self.row.ffn_norm_kind)
        up, gate = f"ffn_up{suffix}", f"ffn_gate{suffix}"
        biased = any(self.of(il, name, "bias") is not None for name in (up, gate))
        if self.of(il, gate) is None:
            cur = self.linear(il, up, cur)
            if kind == "SWIGLU":  # both in one matrix
                cur = Tensor("UNARY", cur.type, (cur.ne[0] // 2, *cur.ne[1:]), (cur,), param=kind)
            else:
                cur = g.unary(kind, cur)
        # without biases up and gate are one node (-no-fug: cparams.fused_up_gate)
        elif self.settings.fused_up_gate and not biased:
            cur = self.up_gate(il, suffix, cur)
        else:
            one, two = self.linear(il, up, cur), self.linear(il, gate, cur)
            cur = g.like("FUSED_MUL_UNARY", two, one)
        cur = self.linear(il, f"ffn_down{suffix}", cur)
        return g.add(cur, start) if add_input else cur

    def moe(self, il: int, cur: Tensor, logits: Tensor | None = None) -> Tensor:
        """Mirror llm_build_moe_ffn; `logits`: of a router that is not in it."""
        g, hp, how = self.graph, self.hp, self.row.moe
        assert how is not None
        n_embd, n_tokens = cur.ne[0], cur.ne[1]
        n_used = hp.n_expert_used(il)
        if logits is None:
            logits = self.linear(il, "ffn_gate_inp", cur)
        n_expert = logits.ne[0]
        probs, gating = logits, how.gating
        if gating == "header":
            gating = "sigmoid" if hp.expert_gating_func == 2 else "softmax"
        if gating == "softmax":
            probs = g.soft_max(logits)
        elif gating == "sigmoid":
            probs = g.unary("SIGMOID", logits)
        # the bias (DeepSeek-V3) decides which experts are chosen, not their weights
        probs_b = self.of(il, "exp_probs_b", "bias")
        chosen = probs if probs_b is None else g.add(probs, probs_b)
        selected = g.argsort_top_k(logits if how.weighs_input else chosen, n_used)
        weights = g.get_rows(g.reshape(probs, 1, n_expert, n_tokens), selected)
        # gpt-oss: softmax over the chosen ones alone
        if gating == "weight":
            weights = g.reshape(
                g.soft_max(g.reshape(weights, n_used, n_tokens)), 1, n_used, n_tokens
            )
        if hp.expert_weights_norm if how.normalised is None else how.normalised:
            weights = g.reshape(weights, n_used, n_tokens)
            weights = g.div(weights, g.sum_rows(weights))
            weights = g.reshape(weights, 1, n_used, n_tokens)
        if how.scaled and abs(float(hp.expert_weights_scale or 0.0) - 1.0) > 1e-5:
            weights = g.scale(weights)
        g.expand(weights)
        cur = g.reshape(cur, n_embd, 1, n_tokens)
        if how.weighs_input:
            cur = g.mul(g.repeat(cur, n_embd, n_used, n_tokens), weights)
        cur = self._experts(il, cur, selected)
        experts = g.mul_mat_id(self.need(il, "ffn_down_exps"), cur, selected)
        down_b = self.of(il, "ffn_down_exps", "bias")
        if down_b is not None:
            experts = g.add_id(experts, down_b, selected)
        # a factor per expert, for each token's chosen ones
        scale = self.of(il, "ffn_down_exps", "scale")
        if self.settings.multi_add and not how.weighs_input:
            scales = () if scale is None else (scale, selected)
            sources = (experts, weights, *scales)
            return Tensor("MUL_MULTI_ADD", "f32", (n_embd, n_tokens, 1, 1), sources)
        if scale is not None:
            repeated = g.repeat(g.reshape(scale, 1, n_expert, 1), 1, n_expert, n_tokens)
            factors = g.reshape(g.get_rows(repeated, selected), n_used, n_tokens)
            product = g.mul(g.reshape(weights, n_used, n_tokens), factors)
            weights = g.reshape(product, 1, n_used, n_tokens)
        if not how.weighs_input:
            experts = g.mul(experts, weights)
        # ggml_multi_add takes a view of the first expert's result, and adds the others by
        # its stride
        part = g.view(experts, (n_embd, n_tokens), (experts.nb[2],))
        return g.like("MULTI_ADD", part)

    def _experts(self, il: int, cur: Tensor, selected: Tensor) -> Tensor:
        """Return the gated inner rows of the experts that are used."""
        g = self.graph
        merged = self.of(il, "ffn_gate_up_exps") is not None
        names = ("ffn_gate_up_exps",) if merged else ("ffn_up_exps", "ffn_gate_exps")
        weights = [self.need(il, name) for name in names]
        biases = [self.of(il, name, "bias") for name in names]
        if merged or (self.settings.fused_experts and weights[0].type == weights[1].type):
            rows = weights[0].ne[1] // (3 - len(names))
            given = [bias for bias in biases if bias is not None]
            ne = rows, selected.ne[0], cur.ne[2], 1
            return Tensor("MOE_FUSED_UP_GATE", "f32", ne, (*weights, cur, selected, *given))
        made = [g.mul_mat_id(weight, cur, selected) for weight in weights]
        # next to each other, so that the two can be fused
        for one in made:
            g.expand(one)
        one, two = (
            tensor if bias is None else g.add_id(tensor, bias, selected)
            for tensor, bias in zip(made, biases, strict=True)
        )
        if self.row.act == "SWIGLU_OAI":
            return g.like("UNARY", two, one, param="SWIGLU_OAI")
        return g.like("FUSED_MUL_UNARY", two, one)

    def std_moe(self, il: int, start: Tensor) -> Tensor:
        """Mirror llm_build_std_moe_ffn, which adds its input."""
        g = self.graph
        cur = self.normed(il, start, self.row.ffn_norm)
        routed = g.add(self.moe(il, cur), start)
        g.expand(routed)
        if self.of(il, "ffn_up_shexp") is None:
            return routed
        out = self.ffn(il, cur, suffix="_shexp")
        if self.of(il, "ffn_gate_inp_shexp") is not None:
            made = self.mul_mat(il, "ffn_gate_inp_shexp", cur)
            # one token: the sigmoid and the product are one node
            if made.ne[1] == 1:
                out = Tensor("FUSED_MUL_UNARY", "f32", out.ne, (made, out))
            else:
                out = g.mul(out, g.unary("SIGMOID", made))
        cur = g.add(routed, out)
        g.expand(cur)
        return cur

    def qkv(self, il: int, cur: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mirror llm_build_mul_mat_qkv of three matrices, with norms of heads."""
        g = self.graph
        made = [self.mul_mat(il, f"attn_{part}", cur) for part in "qkv"]
        for tensor in made:
            g.expand(tensor)
        if self.row.q_scale == "key" and self.hp.f_attention_scale:
            made[0] = g.scale(made[0])
        for i, part in enumerate("qkv"):
            bias = self.of(il, f"attn_{part}", "bias")
            if bias is not None:
                made[i] = g.add(made[i], bias)
                g.expand(made[i])
        return self.by_head(il, made[0], "q"), self.by_head(il, made[1], "k"), made[2]

    def by_head(self, il: int, cur: Tensor, part: str) -> Tensor:
        """Return queries or keys by head, with their norm if the file has one."""
        head = self.hp.head_k(il)
        cur = self.graph.reshape(cur, head, cur.ne[0] // head, self.tokens)
        return self.normed(il, cur, f"attn_{part}_norm")

    def kv(self, il: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        """Mirror llm_build_kv, without its output matrix; without `k` and `v` the cache is another
        layer's."""
        g, hp = self.graph, self.hp
        if self.turns_k:
            q, k = turned(q, hp.head_k(il)), k and turned(k, hp.head_k(il))
        if self.turns_v:
            v = v and turned(v, hp.head_v(il))
        for tensor in (q, k, v):
            if tensor is not None:
                g.expand(tensor)
        k_l, v_l = self.cache(il, k, v)
        if k is not None and v is not None:
            self.store(k, v, k_l, v_l)
        cur = self.attend(il, q, k_l, v_l)
        g.expand(cur)
        return cur

    def cache(self, il: int, k: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.caches[il]["k"], self.caches[il]["v"]

    def latent_cache(self, il: int) -> Tensor:
        return self.caches[il]["k"]

    def store(self, k: Tensor, v: Tensor, k_l: Tensor, v_l: Tensor) -> None:
        """Mirror llm_build_kv_store."""
        g, n, cells = self.graph, self.tokens, self.context.n_ctx
        head, heads, width = k_l.ne[0], k_l.ne[1] // cells, v_l.ne[0] // cells
        # at the end of the cache: the reserved graph has it full (kv_head = n_ctx - n_tokens)
        row, first = row_size(k_l.type, head), cells - n
        g.expand(g.cpy(k, g.view(k_l, (head, n * heads), (row,), row * heads * first)))
        if self.flash or self.hybrid:
            view = g.view(v_l, (n * width,), (), first * row_size(v_l.type, width))
        else:
            # without flash attention V is kept transposed: [n_ctx, width]
            size = type_size(v_l.type)
            view = g.view(v_l, (n, width), (cells * size,), first * size)
            v = g.transpose(v)
        g.expand(g.cpy(v, view))

    def attend(self, il: int, q: Tensor, k_l: Tensor, v_l: Tensor) -> Tensor:
        """Mirror llm_build_kqv, up to its output matrix."""
        g, cells = self.graph, self.context.n_ctx
        head_k, heads = k_l.ne[0], k_l.ne[1] // cells
        width = v_l.ne[0] // cells
        head_v = width // heads
        mask = self.window if self.row.window(self.hp, il) else self.mask
        sinks = self.of(il, "attn_sinks")
        q = g.permute(q, 0, 2, 1, 3)
        wide = head_v * q.ne[2]
        row = row_size(k_l.type, head_k)
        k = g.view(k_l, (head_k, cells, heads), (row * heads, row))
        if self.flash or self.hybrid:
            strides = row_size(v_l.type, width), row_size(v_l.type, head_v)
            v = g.view(v_l, (head_v, cells, heads), strides)
        if self.flash:
            cur = g.flash_attn(q, k, v, mask, sinks)
            # the rotation is undone on the result
            cur = turned(cur, head_v) if self.turns_v else cur
            return g.reshape(cur, wide, self.tokens)
        # the cache of a hybrid never has V transposed (v_trans), so it is here
        if self.hybrid:
            v = g.cont(g.transpose(v))
        else:
            size = type_size(v_l.type)
            v = g.view(v_l, (cells, head_v, heads), (size * cells, size * cells * head_v))

        def scored(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kq = g.mul_mat(k, q)
            if self.row.soft_cap:
                return g.mul_mat(v, g.like("SOFT_CAP_MAX", kq, mask))
            return g.mul_mat(v, g.soft_max(kq, mask, sinks))

        whole, limit = k.ne[1] * q.ne[1] * q.ne[2] * 4 // (1 << 20), self.settings.attention_mib
        # -amb: the scores of all heads at once would be larger than it allows
        if 0 < limit < whole and heads == q.ne[2] and sinks is None:
            parts = [scored(*[some_heads(g, t, i, 1) for t in (q, k, v)]) for i in range(heads)]
            merged = reduce(lambda one, other: g.concat(one, other, 2), parts)
        else:
            merged = scored(q, k, v)
        cur = g.cont(g.permute(merged, 0, 2, 1, 3), wide, self.tokens)
        # -nkvo without flash attention: kqv_merged_cont is given to the CPU by the callback
        if not self.context.offload_kqv:
            cur.pinned = self.pin(-1)
        return cur

    def attention(self, il: int, start: Tensor, pick: bool = True) -> tuple[Tensor, ...]:
        """Return (what attention adds, the layer's input, the input with its norm), of the rows
        that are read after it (`pick`)."""
        g, hp, row = self.graph, self.hp, self.row
        normed = self.normed(il, start, "attn_norm")
        again = self.of(il, "attn_norm_2") is not None
        q, k, v = row.qkv(self, il, self.normed(il, start, "attn_norm_2") if again else normed)
        if row.rope(hp, il):
            factors = self.factors(il) if row.rope_factors(hp, il) else None
            q, k = g.rope(q, self.pos, factors), k and g.rope(k, self.pos, factors)
            if row.q_scale == "roped":
                q = g.scale(q)
        elif row.temperature:
            q = g.mul(q, self.temperature)
        cur = self.kv(il, q, k, v)
        if self.of(il, "attn_gate") is not None:
            made = self.mul_mat(il, "attn_gate", normed)
            heads, head = hp.n_head(il), hp.head_v(il)
            # one gate per head, or one per element
            if made.ne[0] == heads:
                three = g.reshape(cur, head, heads, self.tokens)
                made = g.reshape(made, 1, heads, self.tokens)
                cur = Tensor("FUSED_MUL_UNARY", "f32", three.ne, (made, three))
            else:
                cur = g.mul(cur, g.unary("SIGMOID", made))
            cur = g.reshape(cur, head * heads, self.tokens)
        cur = (self.linear if row.wo_bias else self.mul_mat)(il, "attn_output", cur)
        if row.attn_post_norm == "all":
            cur = self.normed(il, cur, "post_attention_norm")
        if pick:
            cur, start, normed = self.picked(il, cur, start, normed)
        if row.attn_post_norm == "picked":
            cur = self.normed(il, cur, "post_attention_norm")
        return g.scale(cur) if row.residual_scale == "each" else cur, start, normed

    def std_attention(self, il: int, start: Tensor) -> Tensor:
        """Mirror build_std_attention, which adds its input."""
        cur, start, _ = self.attention(il, start)
        return self.graph.add(*((start, cur) if self.row.residual_first else (cur, start)))

    def head(self, cur: Tensor) -> Tensor:
        """Mirror build_output."""
        if self.w("output_norm.weight") is not None:
            cur = self.norm(cur, self.w("output_norm.weight"), self.w("output_norm.bias"))
        if self.row.logit_scale == "normed" and self.hp.f_logit_scale:
            cur = self.graph.scale(cur)
        return self.graph.mul_mat(self.outside("output"), cur)


def some_heads(g: Graph, a: Tensor, first: int, count: int) -> Tensor:
    """Return a view of `count` heads (dimension 2) from `first` on."""
    return g.view(a, (a.ne[0], a.ne[1], count), (a.nb[1], a.nb[2]), a.nb[2] * first)


def turned(a: Tensor, head: int) -> Tensor:
    """Return it rotated by Hadamard matrices (-khad, -vhad)."""
    # the largest power of two that divides the head, at most 512 unless the head is one itself
    sides = (head,) if head & (head - 1) == 0 else (512, 256, 128, 64)
    side = next((side for side in sides if head % side == 0), 0)
    return Tensor("HADAMARD", "f32", a.ne, (a,), param=side) if side else a


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
