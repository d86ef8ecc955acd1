"""ik_llama.cpp's graph of a prompt; it reserves one: src/llama-build-context.cpp and src/graphs/,
8337e4cd. Each method mirrors the llm_build_* function of its name; families of architectures are in
families.py."""

from __future__ import annotations

from ....ggml.tensor import Graph, Tensor, row_size, type_size
from ....ggml.types import is_quantised
from ....records import dataclass
from .cache import latent_heads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ....memory.context import Context
    from ....model.hparams import Hparams
    from .. import Said

    Caches = Mapping[int, Mapping[str, Tensor]]

_MASK_ROWS = 16  # GGML_KQ_MASK_PAD
_GATED = ("SILU", "RELU", "GELU", "SWIGLU_OAI")


@dataclass(frozen=True)
class Experts:
    """How a token's experts are chosen and weighed: the arguments of llm_build_moe_ffn.
    `normalised` None, `gating` "header" and `scaled`: as the keys say; `gating` "weight": over the
    chosen ones alone; `bias`: exp_probs_b is read; `shared`: a shared expert is added."""

    kind: str = "SILU"
    normalised: bool | None = False
    scaled: bool = False
    gating: str = "softmax"
    shared: bool = False
    bias: bool = True


class Builder:
    """One graph. `weights`: by name, None where the file has none; `caches`: tensors k, v, s of
    each layer; `pin`: the backend of a layer, for norms that the builder gives to it."""

    def __init__(
        self,
        hp: Hparams,
        context: Context,
        settings: Said,
        weights: Callable[[str], Tensor | None],
        caches: Caches,
        pin: Callable[[int], int],
        architecture: str,
        mla: int,
        alone: bool,
    ) -> None:
        self.graph = Graph()
        self.hp, self.context, self.settings, self.weights, self.caches = (
            hp,
            context,
            settings,
            weights,
            caches,
        )
        self.pin, self.architecture = pin, architecture
        self.mla, self.alone = mla, alone  # alone: the CPU is the only backend
        self.latent = latent_heads(hp, architecture)
        self.tokens = min(context.n_ctx, context.n_ubatch)
        # logits of all tokens of the reserved graph, unless -wgt gives their number
        self.outputs = settings.logit_rows or self.tokens
        self.flash = context.flash_attn != "off"
        self.hybrid = any(map(hp.is_recr, range(hp.n_layer)))  # its V is never kept transposed
        quantised = [
            is_quantised(settings.type_k or context.type_k),
            is_quantised(settings.type_v or context.type_v),
        ]
        # -khad and -vhad rotate what a quantised cache keeps
        self.turns_k, self.turns_v = (
            settings.k_hadamard and quantised[0],
            settings.v_hadamard and quantised[1],
        )

    # weights

    def w(self, name: str) -> Tensor | None:
        return self.weights(name)

    def of(self, il: int, name: str) -> Tensor | None:
        return self.weights(f"blk.{il}.{name}")

    def need(self, il: int, name: str) -> Tensor:
        weight = self.of(il, name)
        if weight is None:
            raise LookupError(f"blk.{il}.{name}")
        return weight

    def heads(self, il: int) -> tuple[int, int, int]:
        """Return the elements of a head's keys and values, and heads of the cache; of latent
        attention as if it had none."""
        hp = self.hp
        if self.latent is not None:
            return (*self.latent, hp.n_head(il))
        return hp.head_k(il), hp.head_v(il), hp.n_head_kv(il)

    # inputs

    def embeddings(self) -> Tensor:
        """Mirror llm_build_inp_embd."""
        tokens = self.graph.input("inp_tokens", "i32", self.tokens)
        embd = self.w("token_embd.weight")
        assert embd is not None
        return self.graph.get_rows(embd, tokens)

    def positions(self) -> Tensor:
        return self.graph.input("inp_pos", "i32", self.tokens * self.hp.n_pos_per_embd)

    def mask(self) -> Tensor:
        """Mirror build_inp_KQ_mask and build_inp_KQ_mask_swa."""
        rows = -(-self.tokens // _MASK_ROWS) * _MASK_ROWS
        # [n_ctx, rows]: as many cells as the whole cache has; a model with windows has two of them
        return self.graph.input("KQ_mask", "f16" if self.flash else "f32", self.context.n_ctx, rows)

    def output_ids(self) -> Tensor:
        return self.graph.input("inp_out_ids", "i32", self.outputs)

    # parts

    def norm(
        self,
        cur: Tensor,
        weight: Tensor | None,
        bias: Tensor | None = None,
        kind: str = "rms",
        il: int = -1,
    ) -> Tensor:
        """Mirror llm_build_norm."""
        g = self.graph
        # one fused node, which llm_build_norm does not name, so that it is never pinned
        if kind == "rms" and weight is not None:
            cur = Tensor("FUSED_RMS_NORM", "f32", cur.ne, (cur, weight))
            return cur if bias is None else g.add(cur, bias)
        cur = g.norm(cur) if kind == "ln" else g.rms_norm(cur)
        if il >= 0 and (weight is not None or bias is not None):
            cur.pinned = self.pin(il)
        if weight is not None:
            cur = g.mul(cur, weight)
        return cur if bias is None else g.add(cur, bias)

    def up_gate(self, up: Tensor, gate: Tensor, cur: Tensor, kind: str) -> Tensor:
        """Mirror ggml_fused_up_gate."""
        g = self.graph
        # ggml_fused_up_gate itself falls back to three nodes unless both weights have one
        # quantised type
        if not is_quantised(up.type) or up.type != gate.type or up.ne != gate.ne:
            one, two = g.mul_mat(up, cur), g.mul_mat(gate, cur)
            return Tensor("FUSED_MUL_UNARY", "f32", two.ne, (two, one), param=kind)
        return Tensor(
            "FUSED_UP_GATE", "f32", (up.ne[1], cur.ne[1], 1, 1), (up, gate, cur), param=kind
        )

    def ffn(
        self,
        il: int,
        cur: Tensor,
        norm: Tensor | None = None,
        kind: str = "SILU",
        parallel: bool = True,
        suffix: str = "",
        add_input: bool = False,
        extra: Tensor | None = None,
        norm_kind: str = "rms",
    ) -> Tensor:
        """Mirror llm_build_ffn."""
        g, start = self.graph, cur
        up, gate, down = (
            self.of(il, f"ffn_{part}{suffix}.weight") for part in ("up", "gate", "down")
        )
        up_b, gate_b, down_b = (
            self.of(il, f"ffn_{part}{suffix}.bias") for part in ("up", "gate", "down")
        )
        # the graphs of LLM_FFN_SEQ pass no gate
        if not parallel and kind != "SILU":
            gate = gate_b = None
        if norm is not None:
            cur = self.norm(cur, norm, None, norm_kind, il)
        assert up is not None
        assert down is not None
        # without biases up and gate are one node (-no-fug: cparams.fused_up_gate)
        plain = up_b is None and gate_b is None and gate is not None and parallel
        if self.settings.fused_up_gate and plain and kind in _GATED:
            assert gate is not None
            cur = g.mul_mat(down, self.up_gate(up, gate, cur, kind))
        else:
            one = g.mul_mat(up, cur)
            if up_b is not None:
                one = g.add(one, up_b)
            two = one
            if gate is not None:
                two = g.mul_mat(gate, cur)
                if gate_b is not None:
                    two = g.add(two, gate_b)
            if gate is not None and parallel and kind in ("SILU", "RELU", "GELU"):
                cur = Tensor("FUSED_MUL_UNARY", "f32", two.ne, (two, one), param=kind)
            elif kind == "SWIGLU":
                cur = Tensor("UNARY", two.type, (two.ne[0] // 2, *two.ne[1:]), (two,), param=kind)
            elif kind == "RELU_SQR":
                cur = g.sqr(g.unary("RELU", two))
            else:
                cur = g.unary(kind, two)
            cur = g.mul_mat(down, cur)
        if down_b is not None:
            cur = g.add(cur, down_b)
        if add_input:
            cur = g.add(cur, start)
        return cur if extra is None else g.add(cur, extra)

    def moe(
        self,
        il: int,
        cur: Tensor,
        how: Experts,
        add_input: bool = False,
        logits: Tensor | None = None,
    ) -> Tensor:
        """Mirror llm_build_moe_ffn; `logits`: of a router that is not in it."""
        g, hp, start = self.graph, self.hp, cur
        n_embd, n_tokens = cur.ne[0], cur.ne[1]
        n_used = hp.n_expert_used(il)
        # llama4's weights are applied to the input of the experts, and it chooses by raw logits
        before = self.architecture == "llama4"
        if logits is None:
            logits = g.mul_mat(self.need(il, "ffn_gate_inp.weight"), cur)
        inp_b = self.of(il, "ffn_gate_inp.bias")
        if inp_b is not None:
            logits = g.add(logits, inp_b)
        n_expert = logits.ne[0]
        probs, gating = logits, how.gating
        if gating == "header":
            gating = "sigmoid" if hp.expert_gating_func == 2 else "softmax"
        if gating == "softmax":
            probs = g.soft_max(logits)
        elif gating == "sigmoid":
            probs = g.unary("SIGMOID", logits)
        # the bias (DeepSeek-V3) decides which experts are chosen, not their weights
        chosen = probs
        probs_b = self.of(il, "exp_probs_b.bias") if how.bias else None
        if probs_b is not None:
            chosen = g.add(probs, probs_b)
        selected = g.argsort_top_k(logits if before else chosen, n_used)
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
        if before:
            cur = g.mul(g.repeat(cur, n_embd, n_used, n_tokens), weights)
        cur = self._experts(il, cur, selected, how.kind)
        experts = g.mul_mat_id(self.need(il, "ffn_down_exps.weight"), cur, selected)
        down_b = self.of(il, "ffn_down_exps.bias")
        if down_b is not None:
            experts = g.add_id(experts, down_b, selected)
        scale = self.of(il, "ffn_down_exps.scale")
        # a factor per expert, for each token's chosen ones
        if scale is not None and not self.settings.multi_add:
            repeated = g.repeat(g.reshape(scale, 1, n_expert, 1), 1, n_expert, n_tokens)
            chosen = g.reshape(g.get_rows(repeated, selected), n_used, n_tokens)
            product = g.mul(g.reshape(weights, n_used, n_tokens), chosen)
            weights = g.reshape(product, 1, n_used, n_tokens)
        if not before:
            if self.settings.multi_add:
                scales = () if scale is None else (scale, selected)
                sources = (experts, weights, *scales)
                experts = Tensor("MUL_MULTI_ADD", "f32", (n_embd, n_tokens, 1, 1), sources)
                return g.add(experts, start) if add_input else experts
            experts = g.mul(experts, weights)
        # ggml_multi_add takes a view of the first expert's result, and adds the others by
        # its stride
        part = g.view(experts, (n_embd, n_tokens), (experts.nb[2],))
        result = Tensor("MULTI_ADD", "f32", (n_embd, n_tokens, 1, 1), (part,))
        return g.add(result, start) if add_input else result

    def _experts(self, il: int, cur: Tensor, selected: Tensor, kind: str) -> Tensor:
        """Return the gated inner rows of the experts that are used."""
        g = self.graph
        both = self.of(il, "ffn_gate_up_exps.weight")
        if both is not None:
            both_b = self.of(il, "ffn_gate_up_exps.bias")
            sources = (both, cur, selected) if both_b is None else (both, cur, selected, both_b)
            return Tensor(
                "MOE_FUSED_UP_GATE", "f32", (both.ne[1] // 2, selected.ne[0], cur.ne[2], 1), sources
            )
        up, gate = self.need(il, "ffn_up_exps.weight"), self.need(il, "ffn_gate_exps.weight")
        up_b, gate_b = self.of(il, "ffn_up_exps.bias"), self.of(il, "ffn_gate_exps.bias")
        if self.settings.fused_experts and up.type == gate.type:
            more = [tensor for tensor in (up_b, gate_b) if tensor is not None]
            return Tensor(
                "MOE_FUSED_UP_GATE",
                "f32",
                (up.ne[1], selected.ne[0], cur.ne[2], 1),
                (up, gate, cur, selected, *more),
            )
        one, two = g.mul_mat_id(up, cur, selected), g.mul_mat_id(gate, cur, selected)
        # next to each other, so that the two can be fused
        g.expand(one)
        g.expand(two)
        if up_b is not None:
            one = g.add_id(one, up_b, selected)
        if gate_b is not None:
            two = g.add_id(two, gate_b, selected)
        if kind == "SWIGLU_OAI":
            return Tensor("UNARY", "f32", two.ne, (two, one), param=kind)
        return Tensor("FUSED_MUL_UNARY", "f32", two.ne, (two, one), param=kind)

    def std_moe(self, il: int, start: Tensor, norm: Tensor | None, how: Experts) -> Tensor:
        """Mirror llm_build_std_moe_ffn, which adds its input."""
        g = self.graph
        cur = start if norm is None else self.norm(start, norm)
        routed = g.add(self.moe(il, cur, how), start)
        g.expand(routed)
        if not how.shared or self.of(il, "ffn_up_shexp.weight") is None:
            return routed
        out = self.ffn(il, cur, suffix="_shexp")
        gate = self.of(il, "ffn_gate_inp_shexp.weight")
        if gate is not None:
            made = g.mul_mat(gate, cur)
            # one token: the sigmoid and the product are one node
            if made.ne[1] == 1:
                out = Tensor("FUSED_MUL_UNARY", "f32", out.ne, (made, out))
            else:
                out = g.mul(out, g.unary("SIGMOID", made))
        cur = g.add(routed, out)
        g.expand(cur)
        return cur

    def qkv(
        self, il: int, cur: Tensor, biased: bool = True, scaled: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mirror llm_build_mul_mat_qkv of three matrices."""
        g = self.graph
        made = [g.mul_mat(self.need(il, f"attn_{part}.weight"), cur) for part in "qkv"]
        for tensor in made:
            g.expand(tensor)
        if scaled:
            made[0] = g.scale(made[0])
        for i, part in enumerate("qkv" if biased else ""):
            bias = self.of(il, f"attn_{part}.bias")
            if bias is not None:
                made[i] = g.add(made[i], bias)
                g.expand(made[i])
        return made[0], made[1], made[2]

    def qkv_normed(
        self, il: int, cur: Tensor, scaled: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mirror llm_build_mul_mat_qkv of any matrices, with norms of heads."""
        g, hp = self.graph, self.hp
        head, heads, heads_kv = hp.head_k(il), hp.n_head(il), hp.n_head_kv(il)
        q_norm, k_norm = self.of(il, "attn_q_norm.weight"), self.of(il, "attn_k_norm.weight")
        fused = self.of(il, "attn_qkv.weight")
        if fused is not None:
            both = g.mul_mat(fused, cur)
            bias = self.of(il, "attn_qkv.bias")
            if bias is not None:
                both = g.add(both, bias)
            n = self.tokens
            q = g.view(both, (head, heads, n), (4 * head, both.nb[1]))
            k = g.view(both, (head, heads_kv, n), (4 * head, both.nb[1]), 4 * head * heads)
            v = g.view(both, (hp.n_embd_v_gqa(il), n), (both.nb[1],), 4 * head * (heads + heads_kv))
            if q_norm is not None:
                q = self.norm(q, q_norm)
                g.expand(q)
            if k_norm is not None:
                k = self.norm(k, k_norm)
                g.expand(k)
            return q, k, v
        q, k, v = self.qkv(il, cur, scaled=scaled)
        kind = "ln" if self.architecture == "command-r" else "rms"
        q = g.reshape(q, head, q.ne[0] // head, self.tokens)
        if q_norm is not None:
            q = self.norm(q, q_norm, None, kind, il)
        k = g.reshape(k, head, k.ne[0] // head, self.tokens)
        if k_norm is not None:
            k = self.norm(k, k_norm, None, kind, il)
        return q, k, v

    def kv(
        self,
        il: int,
        k: Tensor | None,
        v: Tensor | None,
        q: Tensor,
        mask: Tensor,
        wo: Tensor | None,
        bo: Tensor | None,
        sinks: Tensor | None = None,
        softcap: bool = False,
    ) -> Tensor:
        """Mirror llm_build_kv; without `k` and `v` the cache is another layer's."""
        g, hp = self.graph, self.hp
        if self.turns_k and (side := hadamard(hp.head_k(il))):
            q, k = turned(q, side), None if k is None else turned(k, side)
        if self.turns_v and v is not None and (side := hadamard(hp.head_v(il))):
            v = turned(v, side)
        for tensor in (q, k, v):
            if tensor is not None:
                g.expand(tensor)
        if k is not None and v is not None:
            self.store(il, k, v)
        cur = self.attend(il, q, mask, sinks, softcap)
        g.expand(cur)
        if wo is not None:
            cur = g.mul_mat(wo, cur)
        return cur if bo is None else g.add(cur, bo)

    def store(self, il: int, k: Tensor, v: Tensor) -> None:
        """Mirror llm_build_kv_store."""
        g, n = self.graph, self.tokens
        k_l, v_l = self.caches[il]["k"], self.caches[il]["v"]
        head, value, heads = self.heads(il)
        width = value * heads
        # at the end of the cache: the reserved graph has it full (kv_head = n_ctx - n_tokens)
        row, first = row_size(k_l.type, head), self.context.n_ctx - n
        view = g.view(k_l, (head, n * heads), (row,), row * heads * first)
        g.expand(g.cpy(k, view))
        if self.flash or self.hybrid:
            view = g.view(v_l, (n * width,), (), first * row_size(v_l.type, width))
        else:
            # without flash attention V is kept transposed: [n_ctx, width]
            size = type_size(v_l.type)
            view = g.view(v_l, (n, width), (self.context.n_ctx * size,), first * size)
            v = g.transpose(v)
        g.expand(g.cpy(v, view))

    def attend(
        self, il: int, q: Tensor, mask: Tensor, sinks: Tensor | None, softcap: bool
    ) -> Tensor:
        """Mirror llm_build_kqv, up to its output matrix."""
        g, hp, n_kv = self.graph, self.hp, self.context.n_ctx
        k_l, v_l = self.caches[il]["k"], self.caches[il]["v"]
        head_k, head_v, heads = self.heads(il)
        q = g.permute(q, 0, 2, 1, 3)
        row = row_size(k_l.type, head_k)
        k = g.view(k_l, (head_k, n_kv, heads), (row * heads, row))
        wide = head_v * hp.n_head(il)
        if self.flash or self.hybrid:
            width = head_v * heads
            v = g.view(
                v_l, (head_v, n_kv, heads), (row_size(v_l.type, width), row_size(v_l.type, head_v))
            )
        if self.flash:
            sources = (q, k, v, mask) if sinks is None else (q, k, v, mask, sinks)
            cur = Tensor(
                "FLASH_ATTN_EXT", "f32", (head_v, q.ne[2], q.ne[1], q.ne[3]), sources, param=True
            )
            # the rotation is undone on the result
            if self.turns_v and (side := hadamard(head_v)):
                cur = turned(cur, side)
            return g.reshape(cur, wide, self.tokens)
        size = type_size(v_l.type)
        # the cache of a hybrid never has V transposed (v_trans), so it is here
        if self.hybrid:
            v = g.cont(g.transpose(v))
        else:
            v = g.view(v_l, (n_kv, head_v, heads), (size * n_kv, size * n_kv * head_v))
        whole = k.ne[1] * q.ne[1] * q.ne[2] * 4 // (1 << 20)
        limit = self.settings.attention_mib
        fits_at_once = limit == 0 or limit >= whole
        groups_heads = k.ne[2] != q.ne[2] or v.ne[2] != q.ne[2]
        if fits_at_once or groups_heads or sinks is not None:
            merged = g.permute(
                g.mul_mat(v, self._weighted(g.mul_mat(k, q), mask, sinks, softcap)), 0, 2, 1, 3
            )
        else:
            # attend with one head after the other, and join the results
            joined = None
            for i in range(q.ne[2]):
                # -amb: the scores of all heads at once would be larger than it allows
                kq = g.mul_mat(some_heads(g, k, i, 1), some_heads(g, q, i, 1))
                kq = self._weighted(kq, mask, None, softcap)
                part = g.mul_mat(some_heads(g, v, i, 1), kq)
                joined = part if joined is None else g.concat(joined, part, 2)
            assert joined is not None
            merged = g.permute(joined, 0, 2, 1, 3)
        cur = g.cont(merged, wide, self.tokens)
        # -nkvo without flash attention: kqv_merged_cont is given to the CPU by the callback
        if not self.context.offload_kqv:
            cur.pinned = self.pin(-1)
        return cur

    def _weighted(self, kq: Tensor, mask: Tensor, sinks: Tensor | None, softcap: bool) -> Tensor:
        if softcap:
            return Tensor("SOFT_CAP_MAX", kq.type, kq.ne, (kq, mask))
        return self.graph.soft_max(kq, mask, sinks)

    def std_attention(
        self,
        il: int,
        start: Tensor,
        pos: Tensor,
        ids: Tensor | None,
        mask: Tensor,
        factors: Tensor | None = None,
        rope: bool = True,
        sinks: Tensor | None = None,
        q_scaled: bool = False,
        kind: str = "rms",
        post: Tensor | None = None,
    ) -> Tensor:
        """Mirror build_std_attention, which adds its input."""
        g, hp = self.graph, self.hp
        norm = self.of(il, "attn_norm.weight")
        cur = start if norm is None else self.norm(start, norm, None, kind, il)
        normed = cur
        q, k, v = self.qkv_normed(il, cur, q_scaled)
        if rope:
            q, k = g.rope(q, pos, factors), g.rope(k, pos, factors)
        wo, bo = self.of(il, "attn_output.weight"), self.of(il, "attn_output.bias")
        gate = self.of(il, "attn_gate.weight")
        if gate is None:
            cur = self.kv(il, k, v, q, mask, wo, bo, sinks)
        else:
            cur = self.kv(il, k, v, q, mask, None, None, sinks)
            made = g.mul_mat(gate, normed)
            heads, head = hp.n_head(il), hp.head_v(il)
            # one gate per head, or one per element
            if made.ne[0] == heads:
                three = g.reshape(cur, head, heads, self.tokens)
                cur = Tensor(
                    "FUSED_MUL_UNARY",
                    "f32",
                    three.ne,
                    (g.reshape(made, 1, heads, self.tokens), three),
                )
            else:
                cur = g.mul(cur, g.unary("SIGMOID", made))
            cur = g.reshape(cur, head * heads, self.tokens)
            assert wo is not None
            cur = g.mul_mat(wo, cur)
            if bo is not None:
                cur = g.add(cur, bo)
        if ids is not None:
            cur, start = g.get_rows(cur, ids), g.get_rows(start, ids)
        if post is not None:
            cur = self.norm(cur, post)
        return g.add(cur, start)

    def head(self, cur: Tensor, kind: str = "rms", scaled: bool = False) -> Tensor:
        """Mirror build_output."""
        g = self.graph
        norm = self.w("output_norm.weight")
        if norm is not None:
            cur = self.norm(cur, norm, self.w("output_norm.bias"), kind)
        if scaled:
            cur = g.scale(cur)
        output = self.w("output.weight")
        assert output is not None
        return g.mul_mat(output, cur)


def some_heads(g: Graph, a: Tensor, first: int, count: int) -> Tensor:
    """Return a view of `count` heads (dimension 2) from `first` on."""
    return g.view(a, (a.ne[0], a.ne[1], count), (a.nb[1], a.nb[2]), a.nb[2] * first)


def hadamard(head: int) -> int:
    # the largest power of two that divides the head, at most 512 unless the head is one itself
    if head & (head - 1) == 0:
        return head
    return next((side for side in (512, 256, 128, 64) if head % side == 0), 0)


def turned(a: Tensor, side: int) -> Tensor:
    return Tensor("HADAMARD", "f32", a.ne, (a,), param=side)
