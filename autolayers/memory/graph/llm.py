"""Building blocks of a model's graph, named as in llama.cpp's src/llama-graph.cpp (2026-10-01).

An architecture (autolayers.memory.graph.decoder and .archs) calls these in llama.cpp's order; the order in which
tensors are made and expanded is part of the result, because the allocator sees it.
"""

from __future__ import annotations

from ...errors import LaunchRefused, ModelError
from .tensor import Graph, Tensor, row_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .scheduler import Backend


_CLAMPED = frozenset(("bailingmoe3", "deepseek4", "dflash", "glm5-next", "hy_v4", "maple", "step35"))
_CLAMPED_SHARED = _CLAMPED - {"hy_v4", "maple"}     # their dense and shared experts go free
_FUSED_CLAMP = frozenset(("deepseek4", "glm5-next", "dflash"))     # clamped SwiGLU as one op


class Cache:
    """One KV cache of the model as the graph sees it: preallocated tensors and the shapes of its inputs."""

    def __init__(self, llm: Llm, n_kv: int, n_stream: int, layers: dict[int, tuple[Tensor, Tensor | None]],
                 v_trans: bool, k_rot: int = 0, v_rot: int = 0, n_embd_v_gqa_max: int = 0) -> None:
        self.llm = llm
        self.n_kv = n_kv
        self.n_stream = n_stream
        self.layers = layers
        self.v_trans = v_trans
        self.k_rot = k_rot             # side of the Hadamard matrix of quantised caches, 0: none
        self.v_rot = v_rot
        self.n_embd_v_gqa_max = n_embd_v_gqa_max

    def get_k(self, il: int, head: int, n_head: int) -> Tensor:
        k = self.layers[il][0]
        width = k.ne[0]
        return self.llm.g.view(k, (head, n_head, self.n_kv, self.n_stream),
                               (row_size(k.type, head), row_size(k.type, width), row_size(k.type, width * k.ne[1])))

    def get_v(self, il: int, head: int, n_head: int) -> Tensor:
        v = self.layers[il][1]
        assert v is not None
        g, t = self.llm.g, v.type
        width, size = v.ne[0], v.ne[1]
        if not self.v_trans:
            return g.view(v, (head, n_head, self.n_kv, self.n_stream),
                          (row_size(t, head), row_size(t, width), row_size(t, width * size)))
        return g.view(v, (self.n_kv, n_head, head, self.n_stream),
                      (row_size(t, size * head), row_size(t, size), row_size(t, size * width)))

    def cpy_k(self, cur: Tensor, ids: Tensor, il: int) -> Tensor:
        g, k = self.llm.g, self.layers[il][0]
        width = cur.ne[0] * cur.ne[1]
        cur = g.view(cur, (width, cur.ne[2]), (cur.nb[2],))
        if k.ne[2] > 1:
            k = g.reshape(k, width, k.ne[1] * k.ne[2])
        return g.set_rows(k, cur, ids)

    def cpy_v(self, cur: Tensor, ids: Tensor, il: int) -> Tensor:
        g, v = self.llm.g, self.layers[il][1]
        assert v is not None
        width, n_tokens = cur.ne[0] * cur.ne[1], cur.ne[2]
        if not self.v_trans:
            cur = g.view(cur, (width, n_tokens), (cur.nb[2],))
            if v.ne[2] > 1:
                v = g.reshape(v, width, v.ne[1] * v.ne[2])
            return g.set_rows(v, cur, ids)
        if row_size(cur.type, width) == cur.nb[2]:
            cur = g.reshape(cur, width, n_tokens)
        else:
            cur = g.cont(cur, width, n_tokens)
        if width < v.ne[0]:
            cur = g.pad(cur, v.ne[0] - width)
        rows = g.reshape(v, 1, v.nelements)
        return g.set_rows(rows, g.reshape(cur, 1, cur.nelements), ids)


class States:
    """Recurrent states as the graph sees them: layers[il] is (r, s, p), or (kv, score) of a compressor."""

    def __init__(self, n_rows: int, layers: dict[int, tuple[Tensor | None, ...]]) -> None:
        self.n_rows = n_rows
        self.layers = layers
        self.ids: tuple[Tensor, Tensor] | None = None     # which rows to start from; archs.recurrent makes them


class AttnInput:
    """Inputs of one attention type: row indices, mask, rotations (llm_graph_input_attn_*)."""

    def __init__(self, cache: Cache | None, mask: Tensor | None, k_idxs: Tensor | None = None,
                 v_idxs: Tensor | None = None, k_rot: Tensor | None = None, v_rot: Tensor | None = None,
                 swa: AttnInput | None = None) -> None:
        self.cache = cache
        self.mask = mask
        self.k_idxs = k_idxs
        self.v_idxs = v_idxs
        self.k_rot = k_rot
        self.v_rot = v_rot
        self.swa = swa                 # of the sliding-window layers, where the model has both

    def at(self, is_swa: bool) -> AttnInput:
        return self.swa if is_swa and self.swa is not None else self


class Llm:
    """llm_graph_context: the state of one graph under construction, and its helpers."""

    def __init__(self, hp: Any, c: Any, *, n_tokens: int, n_seqs: int, n_outputs: int, fused: dict[str, bool],
                 layers: Sequence[int], weight: Callable[[str], Tensor | None], caches: dict[str, Any],
                 backends: list[Backend], dev_layer: Sequence[int], full_offload: bool) -> None:
        self.g = Graph()
        self.hp = hp
        self.arch: str = hp.architecture.name
        self.soft_cap = False                # attention logits are capped (gemma2)
        self.c = c
        self.n_tokens = n_tokens
        self.n_seqs = n_seqs
        self.n_seq_tokens = n_tokens // n_seqs
        self.n_outputs = n_outputs
        self.use = fused                     # which fused ops llama.cpp would build with
        self.flash_attn = fused["flash_attn"]
        self.layers = layers                 # the layers to build: all, or the ones that stand for the rest
        self.n_layer: int = hp.n_layer
        self.n_embd: int = hp.n_embd
        self.n_head: int = hp.n_head(0)
        self.n_head_kv: int = hp.n_head_kv(0)
        self.head_k: int = hp.head_k(0)
        self.head_v: int = hp.head_v(0)
        self.n_expert: int = hp.n_expert
        self.n_expert_used: int = hp.n_expert_used(0)
        self.caches = caches
        self.backends = backends
        self.dev_layer = dev_layer           # backend of each layer
        self._pin = n_tokens < 32 or full_offload
        self._weight = weight
        self.fused: list[tuple[str, Tensor, int]] = []    # (kind, node, layer) for llama.cpp's auto decisions
        self.ends: list[Tensor] = []                      # of each layer, see end_layer
        self.t_embd: Tensor | None = None
        self.outputs: list[Tensor] = []
        self.inp_tokens: Tensor | None = None
        self.inp_embd: Tensor | None = None               # t_inp_embd: with the rows of deepstack models
        self.attn_temp: Tensor | None = None              # inp_attn_scale, where the model has it

    # weights

    def w(self, name: str) -> Tensor | None:
        """A weight by its full name, or None where the file has none."""
        return self._weight(name)

    def need(self, name: str) -> Tensor:
        tensor = self._weight(name)
        if tensor is None:
            raise ModelError(f"a {self.arch} model without {name}: llama.cpp does not load it")
        return tensor

    def lw(self, il: int, name: str, suffix: str = "weight") -> Tensor | None:
        """blk.<il>.<name>.<suffix>; a few tensors carry no suffix at all."""
        tensor = self._weight(f"blk.{il}.{name}.{suffix}")
        if tensor is None and suffix == "weight":
            return self._weight(f"blk.{il}.{name}")
        return tensor

    def rope_factors(self, il: int) -> Tensor | None:
        """get_rope_factors: llama 3's frequencies, or LongRoPE's by the context's length."""
        freqs = self._weight(f"rope_freqs.weight@{il}")
        if freqs is not None:
            return freqs
        kind = "long" if self.c.n_ctx_seq > self.hp.n_ctx_orig_yarn else "short"
        return self._weight(f"rope_factors_{kind}.weight@{il}")

    # pins and outputs

    def pin(self, tensor: Tensor, il: int) -> None:
        """graph_get_cb: what llama.cpp names "norm" or "l_last" is asked to run on its layer's device."""
        if self._pin and il >= 0:
            b = self.dev_layer[il]
            if self.backends[b].supports(tensor):
                tensor.pinned = b

    def output(self, tensor: Tensor) -> Tensor:
        self.outputs.append(tensor)
        return tensor

    def end_layer(self, cur: Tensor) -> None:
        """Mark the end of a layer by what it hands on: there the graph's script is cut in parts (shorten.py)."""
        self.ends.append(cur)

    # inputs

    def build_inp_embd(self, name: str = "token_embd.weight") -> Tensor:
        g, hp = self.g, self.hp
        tokens = self.inp_tokens = g.input("inp_tokens", "i32", self.n_tokens)
        n_embd_inp = hp.n_embd_inp
        embd = g.input("inp_embd", "f32", n_embd_inp, self.n_tokens)
        cur = g.get_rows(self.need(name), tokens)
        if n_embd_inp != self.n_embd:
            cur = g.pad(cur, n_embd_inp - self.n_embd)
        g.expand(cur)
        g.expand(embd)         # ggml_build_forward_select visits both alternatives
        self.inp_embd = cur
        if n_embd_inp != self.n_embd:
            cur = g.view(cur, (self.n_embd, self.n_tokens), (cur.nb[1],))
        if hp.f_embedding_scale != 0.0:
            if not cur.contiguous():
                cur = g.cont(cur)
            cur = g.scale(cur)
        g.expand(cur)
        return cur

    def build_inp_pos(self) -> Tensor:
        return self.g.input("inp_pos", "i32", self.n_tokens * self.hp.n_pos_per_embd)

    def build_inp_out_ids(self) -> Tensor:
        return self.g.input("out_ids", "i32", self.n_outputs)

    def build_inp_attn_scale(self) -> Tensor:
        return self.g.input("inp_attn_scale", "f32", 1, 1, self.n_tokens)

    def _mask(self, cache: Cache, type_: str) -> Tensor:
        n_stream = 1 if self.c.kv_unified else self.n_seqs
        return self.g.input("attn_inp_kq_mask", type_ or ("f16" if self.flash_attn else "f32"), cache.n_kv,
                            self.n_tokens // n_stream, 1, n_stream)

    def attn_input(self, cache: Cache, with_v: bool = True, rotations: bool = True, mask_type: str = "") -> AttnInput:
        g, n = self.g, self.n_tokens
        k_idxs = g.input("attn_inp_k_idxs", "i64", n)
        v_idxs = g.input("attn_inp_v_idxs", "i64", n * (cache.n_embd_v_gqa_max if cache.v_trans else 1)) if with_v else None
        mask = self._mask(cache, mask_type)
        k_rot = g.input("attn_inp_k_rot", "f32", cache.k_rot, cache.k_rot) if cache.k_rot and rotations else None
        v_rot = g.input("attn_inp_v_rot", "f32", cache.v_rot, cache.v_rot) \
            if cache.v_rot and with_v and rotations else None
        return AttnInput(cache, mask, k_idxs, v_idxs, k_rot, v_rot)

    def build_attn_inp_kv(self) -> AttnInput:
        return self.attn_input(self.caches["attn"])

    def build_attn_inp_k(self) -> AttnInput:
        """MLA: K only; llama.cpp builds no rotation here."""
        return self.attn_input(self.caches["attn"], with_v=False, rotations=False)

    def build_attn_inp_kv_iswa(self) -> AttnInput:
        rotations = "recurrent" not in self.caches     # build_inp_mem_hybrid_iswa builds none
        base = self.attn_input(self.caches["attn"], rotations=rotations)
        base.swa = self.attn_input(self.caches["swa"], rotations=rotations)
        return base

    def build_attn_inp_k_iswa(self) -> AttnInput:
        base = self.attn_input(self.caches["attn"], with_v=False)
        base.swa = self.attn_input(self.caches["swa"], with_v=False)
        return base

    def build_attn_inp_no_cache(self) -> AttnInput:
        n = self.n_tokens
        type_ = "f16" if self.flash_attn else "f32"
        inp = AttnInput(None, self.g.input("self_kq_mask", type_, n, n))
        if self.hp.swa_type != "none":
            inp.swa = AttnInput(None, self.g.input("self_kq_mask_swa", type_, n, n))
        return inp

    def build_attn_inp(self) -> AttnInput:
        """Whatever the model's memory asks for: with sliding window, without, keys alone (MLA), or no cache at all."""
        if "attn" not in self.caches:
            return self.build_attn_inp_no_cache()
        if self.hp.is_mla:
            return self.build_attn_inp_k_iswa() if "swa" in self.caches else self.build_attn_inp_k()
        return self.build_attn_inp_kv_iswa() if "swa" in self.caches else self.build_attn_inp_kv()

    # small blocks

    def build_norm(self, cur: Tensor, weight: Tensor | None, bias: Tensor | None = None, kind: str = "rms",
                   il: int = -1) -> Tensor:
        g = self.g
        if kind == "rms":
            cur = g.rms_norm(cur)
        elif kind == "layer":
            cur = g.norm(cur)
        else:
            cur = g.reshape(cur, cur.ne[0], 1, cur.ne[1])
            cur = g.group_norm(cur)
            cur = g.reshape(cur, cur.ne[0], cur.ne[2])
        if weight is not None or bias is not None:
            self.pin(cur, il)
        if weight is not None:
            cur = g.mul(cur, weight)
        if bias is not None:
            cur = g.add(cur, bias)
        return cur

    def mm(self, weight: Tensor, cur: Tensor, scale: Tensor | None = None, param: object = None) -> Tensor:
        """build_lora_mm: a matmul and the scale of an NVFP4 weight."""
        result = self.g.mul_mat(weight, cur, param)
        return result if scale is None else self.g.mul(result, scale)

    def mm_id(self, weight: Tensor, cur: Tensor, ids: Tensor, scale: Tensor | None = None,
              param: object = None) -> Tensor:
        """build_lora_mm_id"""
        g = self.g
        result = g.mul_mat_id(weight, cur, ids, param)
        if scale is not None:
            n_expert = scale.ne[0]
            s = g.reshape(scale, 1, n_expert, 1)
            s = g.repeat(s, 1, n_expert, cur.ne[2], 1)
            result = g.mul(result, g.get_rows(s, ids))
        return result

    def hadamard(self, cur: Tensor, rot: Tensor) -> Tensor:
        g, n = self.g, rot.ne[0]
        if cur.contiguous():
            flat = g.reshape(cur, n, cur.nelements // n)
        else:
            flat = g.cont(cur, n, cur.nelements // n)
        return g.reshape(g.mul_mat(rot, flat, "hadamard"), *cur.ne)

    def build_qkv(self, cur: Tensor, il: int, n_head: int = 0, n_head_kv: int = 0, head_k: int = 0, head_v: int = 0,
                  *, reshape: bool = True, head_q: int = 0,
                  scales: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Fused or separate projections, biases, clamp; shapes from the layer unless given."""
        g, hp, n = self.g, self.hp, self.n_tokens
        n_head = n_head or hp.n_head(il)
        n_head_kv = n_head_kv or hp.n_head_kv(il)
        head_k = head_k or hp.head_k(il)
        head_v = head_v or hp.head_v(il)
        head_q = head_q or head_k
        clamp = reshape and hp.f_clamp_kqv > 0.0
        fused = self.lw(il, "attn_qkv")
        n_q, n_k = head_q * n_head, head_k * n_head_kv
        if fused is not None:
            qkv = self.mm(fused, cur, self.lw(il, "attn_qkv", "scale") if scales else None)
            bias = self.lw(il, "attn_qkv", "bias")
            if bias is not None:
                qkv = g.add(qkv, bias)
            else:
                parts = [self.lw(il, f"attn_{x}", "bias") for x in "qkv"]
                if None not in parts:
                    qkv = g.add(qkv, g.concat(g.concat(parts[0], parts[1], 0), parts[2], 0))  # type: ignore[arg-type]
            if clamp:
                qkv = g.clamp(qkv)
            if reshape:
                rs, nb1 = qkv.nb[0], qkv.nb[1]
                return (g.view(qkv, (head_q, n_head, n), (rs * head_q, nb1)),
                        g.view(qkv, (head_k, n_head_kv, n), (rs * head_k, nb1), rs * n_q),
                        g.view(qkv, (head_v, n_head_kv, n), (rs * head_v, nb1), rs * (n_q + n_k)))
            q = g.view(qkv, (n_q, n), (qkv.nb[1],))
            k = g.view(qkv, (n_k, n), (qkv.nb[1],), qkv.nb[0] * n_q)
            v = g.view(qkv, (head_v * n_head_kv, n), (qkv.nb[1],), qkv.nb[0] * (n_q + n_k))
            return g.cont(q), g.cont(k), g.cont(v)
        made = []
        for x in "qkv":
            weight = self.need(f"blk.{il}.attn_{x}.weight")
            t = self.mm(weight, cur, self.lw(il, f"attn_{x}", "scale"))
            bias = self.lw(il, f"attn_{x}", "bias")
            if bias is not None:
                t = g.add(t, bias)
            if clamp:
                t = g.clamp(t)
            made.append(t)
        q, k, v = made
        if reshape:
            q = g.reshape(q, head_q, n_head, n)
            k = g.reshape(k, head_k, n_head_kv, n)
            v = g.reshape(v, head_v, n_head_kv, n)
        return q, k, v

    # feed-forward

    def clamp_limit(self, which: str, il: int) -> float:
        """swiglu_clamp_exp / swiglu_clamp_shexp of a layer: the bound of its SwiGLU, 0 without one."""
        if self.arch not in (_CLAMPED_SHARED if which == "shexp" else _CLAMPED):
            return 0.0
        limits = self.hp.get(f"swiglu_clamp_{which}")
        if limits is None and which == "shexp" and self.arch in _FUSED_CLAMP:
            limits = self.hp.get("swiglu_clamp_exp")
        if isinstance(limits, tuple):
            return float(limits[il]) if il < len(limits) else 0.0
        return float(limits or 0.0)

    def build_ffn(self, cur: Tensor, il: int, act: str = "silu", gate: str | None = "par", *, up: str = "ffn_up",
                  gate_name: str = "ffn_gate", down: str = "ffn_down", limit: float | None = None,
                  act_scales: Tensor | None = None, scales: bool = True, biases: bool = True) -> Tensor:
        """build_ffn over blk.<il>.<names>; a missing tensor is a missing step. `gate`: par, seq or None.

        act: silu gelu relu relu_sqr swiglu geglu reglu swiglu_oai; `limit` is swiglu_clamp_shexp[il] unless given; `biases` and
        `scales` (of NVFP4 weights): whether the architecture applies them here if the file has them.
        """
        g = self.g

        def linear(name: str, x: Tensor) -> Tensor | None:
            weight = self.lw(il, name)
            if weight is None:
                return None
            x = g.mul_mat(weight, x)
            bias = self.lw(il, name, "bias") if biases else None
            scale = self.lw(il, name, "scale") if scales else None
            if bias is not None:
                x = g.add(x, bias)
            return x if scale is None else g.mul(x, scale)

        made = linear(up, cur)
        tmp = cur if made is None else made
        gated = linear(gate_name, tmp if gate == "seq" else cur) if gate is not None else None
        has_gate = gated is not None
        cur = gated if gated is not None else tmp
        parallel = has_gate and gate == "par"
        if limit is None:
            limit = self.clamp_limit("shexp", il) if il >= 0 else 0.0
        cur, parallel = self._activate(cur, tmp, act, parallel, limit, act_scales)
        if parallel:
            cur = g.mul(cur, tmp)
        last = linear(down, cur)
        return cur if last is None else last

    def _activate(self, cur: Tensor, tmp: Tensor, act: str, parallel: bool, limit: float,
                  act_scales: Tensor | None) -> tuple[Tensor, bool]:
        """The activation; the flag says whether gate and up still have to be multiplied."""
        g = self.g
        if act == "silu" and parallel and limit > 1e-6:
            if self.arch in _FUSED_CLAMP:
                return g.glu("SWIGLU_CLAMP", cur, tmp), False
            tmp = g.clamp(tmp)
            cur = g.clamp(g.unary("SILU", cur))
            return g.mul(cur, tmp), False
        if act in ("silu", "gelu", "relu"):
            if parallel:
                return g.glu({"silu": "SWIGLU", "gelu": "GEGLU", "relu": "REGLU"}[act], cur, tmp), False
            cur = g.unary(act.upper(), cur)
            if act == "gelu" and act_scales is not None:
                cur = g.div(cur, act_scales)
            return cur, parallel
        if act == "relu_sqr":
            return g.sqr(g.unary("RELU", cur)), parallel
        if act == "swiglu_oai":
            return g.glu("SWIGLU_OAI", cur, tmp), False
        return g.glu(act.upper(), cur), parallel

    def build_moe_ffn(self, cur: Tensor, il: int, act: str = "silu", norm_w: bool = True, w_scale: float = 0.0,
                      gating: str = "softmax", *, n_expert: int = 0, n_expert_used: int = 0,
                      gate_inp: str = "ffn_gate_inp", up: str = "ffn_up_exps", gate: str | None = "ffn_gate_exps",
                      down: str = "ffn_down_exps", gate_up: str | None = "ffn_gate_up_exps",
                      probs_b: str | None = "exp_probs_b", probs_in: Tensor | None = None,
                      weight_before: bool = False, select: str = "probs", groups: bool = True,
                      biases: bool = True, scales: bool = True, limit: float | None = None, group_experts: int = 0,
                      down_param: object = None, selected_in: Tensor | None = None) -> Tensor:
        """build_moe_ffn: choose experts, run them, weigh and sum them.

        gating: softmax sigmoid softmax_weight sqrt_softplus. `select`: what the choice ranks: probs, logits (llama4)
        or sigmoid (grovemoe). `limit` is swiglu_clamp_exp[il] unless given; `group_experts` is grovemoe's experts per group.
        """
        g, hp = self.g, self.hp
        n_expert = n_expert or self.n_expert
        n_used = n_expert_used or self.n_expert_used
        n_embd, n = cur.ne[0], cur.ne[1]

        def bias_of(name: str | None) -> Tensor | None:
            return self.lw(il, name, "bias") if biases and name is not None else None

        def scale_of(name: str | None) -> Tensor | None:
            return self.lw(il, name, "scale") if scales and name is not None else None

        logits = probs_in if probs_in is not None else self.mm(self.need(f"blk.{il}.{gate_inp}.weight"), cur)
        inp_b = bias_of(gate_inp)
        if inp_b is not None:
            logits = g.add(logits, inp_b)
        if gating == "softmax":
            probs = g.soft_max(logits)
        elif gating == "sigmoid":
            probs = g.unary("SIGMOID", logits)
        elif gating == "sqrt_softplus":
            probs = g.sqrt(g.unary("SOFTPLUS", logits))
        else:
            probs = logits
        ranked = probs
        if probs_b is not None:
            extra = self.lw(il, probs_b, "bias")
            if extra is None:
                extra = self.lw(il, probs_b)
            if extra is not None:
                ranked = g.add(probs, extra)
        if select == "logits":
            ranked = logits
        elif select == "sigmoid":
            ranked = g.unary("SIGMOID", logits)
        if groups and hp.n_expert_groups > 1:
            ng = hp.n_expert_groups
            per = n_expert // ng
            selection = g.reshape(ranked, per, ng, n)
            scores = g.argsort_top_k(selection, 2)
            scores = g.get_rows(g.reshape(selection, 1, *selection.ne[:3]), scores)
            scores = g.sum_rows(g.reshape(scores, *scores.ne[1:]))
            scores = g.reshape(scores, scores.ne[1], scores.ne[2])
            chosen = g.argsort_top_k(scores, hp.n_group_used)
            picked = g.get_rows(selection, chosen)
            ranked = g.set_rows(g.fill(selection), picked, chosen)
            ranked = g.reshape(ranked, n_expert, n)
        selected = selected_in if selected_in is not None else g.argsort_top_k(ranked, n_used)
        if group_experts and n_expert != self.n_expert:
            as_float = g.cast(selected, "f32")
            selected = g.cast(g.scale(as_float), "i32")
            probs = g.reshape(probs, 1, self.n_expert, n)
        else:
            probs = g.reshape(probs, 1, n_expert, n)
        weights = g.get_rows(probs, selected)
        if gating == "softmax_weight":
            weights = g.reshape(g.soft_max(g.reshape(weights, n_used, n)), 1, n_used, n)
        if norm_w:
            weights = g.reshape(weights, n_used, n)
            total = g.clamp(g.sum_rows(weights))
            weights = g.reshape(g.div(weights, total), 1, n_used, n)
        if w_scale not in (0.0, 1.0):
            weights = g.scale(weights)
        g.expand(weights)
        cur = g.reshape(cur, n_embd, 1, n)
        if weight_before:
            cur = g.mul(g.repeat(cur, n_embd, n_used, n, 1), weights)
        merged = self.lw(il, gate_up) if gate_up is not None else None
        if merged is not None:
            both = self.mm_id(merged, cur, selected, scale_of(up))
            b = bias_of(gate_up)
            if b is not None:
                both = g.add_id(both, b, selected)
            n_ff = both.ne[0] // 2
            cur = g.view(both, (n_ff, both.ne[1], both.ne[2]), both.nb[1:3])
            upper: Tensor = g.view(both, (n_ff, both.ne[1], both.ne[2]), both.nb[1:3], n_ff * both.nb[0])
            has_gate, split_gate = True, False
        else:
            upper = self.mm_id(self.need(f"blk.{il}.{up}.weight"), cur, selected, scale_of(up))
            b = bias_of(up)
            if b is not None:
                upper = g.add_id(upper, b, selected)
            gate_w = self.lw(il, gate) if gate is not None else None
            has_gate = split_gate = gate_w is not None
            cur = self.mm_id(gate_w, cur, selected, scale_of(gate)) if gate_w is not None else upper
            b = bias_of(gate)
            if b is not None:
                cur = g.add_id(cur, b, selected)
        if limit is None:
            limit = self.clamp_limit("exp", il) if il >= 0 else 0.0
        cur = self._activate_experts(cur, upper, act, has_gate, limit if split_gate else 0.0)
        experts = self.mm_id(self.need(f"blk.{il}.{down}.weight"), cur, selected, scale_of(down), down_param)
        b = bias_of(down)
        if b is not None:
            experts = g.add_id(experts, b, selected)
        if not weight_before:
            experts = g.mul(experts, weights)
        g.expand(experts)
        views = []
        for i in range(hp.n_expert_used(il)):
            views.append(g.view(experts, (n_embd, n), (experts.nb[2],), i * experts.nb[1]))
            g.expand(views[-1])
        out = views[0]
        for v in views[1:]:
            out = g.add(out, v)
            g.expand(out)
        return g.cont(out) if len(views) == 1 else out

    def _activate_experts(self, cur: Tensor, up: Tensor, act: str, has_gate: bool, limit: float) -> Tensor:
        g = self.g
        if act == "silu" and limit > 1e-6:
            if self.arch in _FUSED_CLAMP or self.arch in ("maple", "hy_v4"):
                return g.glu("SWIGLU_CLAMP", cur, up)
            up = g.clamp(up)
            return g.mul(g.clamp(g.unary("SILU", cur)), up)
        if act == "situ":
            gate = g.scale(g.unary("TANH", g.scale(cur)))
            gate = g.mul(gate, g.unary("SIGMOID", cur))
            if self.hp.situ_linear_beta > 0.0:
                up = g.scale(g.unary("TANH", g.scale(up)))
            return g.mul(gate, up)
        if act == "swiglu_oai":
            return g.glu("SWIGLU_OAI", cur, up)
        if act == "relu_sqr":
            return g.sqr(g.unary("RELU", cur))
        if has_gate:
            return g.glu({"silu": "SWIGLU", "gelu": "GEGLU", "relu": "REGLU"}[act], cur, up)
        return g.unary(act.upper(), cur)

    # attention

    def build_attn_mha(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, il: int, *,
                       kq_b: Tensor | None = None, sinks: Tensor | None = None, v_mla: Tensor | None = None,
                       n_kv_max: int = 0) -> Tensor:
        g, hp = self.g, self.hp
        v_trans = v.nb[1] > v.nb[2]
        n_stream = k.ne[3]
        per = q.ne[2] // n_stream
        q = g.view(q, (q.ne[0], q.ne[1], per, n_stream), (q.nb[1], q.nb[2], q.nb[2] * per))
        q = g.permute(q, 0, 2, 1, 3)
        k = g.permute(k, 0, 2, 1, 3)
        v = g.permute(v, 0, 2, 1, 3)
        if self.flash_attn and kq_b is None:
            if v_trans:
                v = g.transpose(v)
            if k.type == "f32":
                k = g.cast(k, "f16")
            if v.type == "f32":
                v = g.cast(v, "f16")
            cur = g.flash_attn(q, k, v, mask, sinks, hp.f_max_alibi_bias > 0.0, n_kv_max)
            self.fused.append(("flash_attn", cur, il))
            if v_mla is not None:
                cur = g.mul_mat(v_mla, g.permute(cur, 0, 2, 1, 3))
                cur = g.cont(g.permute(cur, 0, 2, 1, 3))
            cur = g.reshape(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
        else:
            kq = g.mul_mat(k, q)
            if self.arch == "grok":
                kq = g.scale(g.unary("TANH", g.scale(kq)))
            if self.soft_cap:
                kq = g.scale(g.unary("TANH", g.scale(kq)))
            if kq_b is not None:
                kq = g.add(kq, kq_b)
            kq = g.soft_max(kq, mask, sinks)
            if not v_trans:
                v = g.cont(g.transpose(v))
            kqv = g.mul_mat(v, kq)
            if v_mla is not None:
                kqv = g.mul_mat(v_mla, kqv)
            cur = g.permute(kqv, 0, 2, 1, 3)
            cur = g.cont(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
            if not self.c.offload_kqv:
                cur.pinned = len(self.backends) - 1
        g.expand(cur)
        return cur

    def build_attn(self, inp: AttnInput, q: Tensor, k: Tensor | None, v: Tensor | None, il: int, *,
                   wo: str | None = "attn_output", kq_b: Tensor | None = None, sinks: Tensor | None = None,
                   v_mla: Tensor | None = None, mla: bool = False, wo_bias: bool = True) -> Tensor:
        """Store k and v in the cache (if any), attend, project.

        `mla`: the cache holds K alone and V is its first part (llm_graph_input_attn_k).
        """
        g, hp = self.g, self.hp
        a = inp.at(hp.is_swa(il))
        iswa = inp.swa is not None
        cache = a.cache
        if a.k_rot is not None:
            q = self.hadamard(q, a.k_rot)
            if k is not None:
                k = self.hadamard(k, a.k_rot)
        if a.v_rot is not None and v is not None and not mla:
            v = self.hadamard(v, a.v_rot)
        # expanded together so that they are not reordered; the plain cache wants k last, iSWA and no cache v last
        late_k = cache is not None and not iswa
        order = (q, v, k) if late_k else (q, k) if mla and iswa else (q, k, v)
        for t in order:
            if t is not None:
                g.expand(t)
        if cache is None:
            assert k is not None and v is not None
            keys, values = k, v
        else:
            if k is not None:
                g.expand(cache.cpy_k(k, a.k_idxs, il))  # type: ignore[arg-type]
            if v is not None and not mla:
                g.expand(cache.cpy_v(v, a.v_idxs, il))  # type: ignore[arg-type]
            keys = cache.get_k(il, hp.head_k(il), hp.n_head_kv(il))
            if mla:
                assert v is not None
                values = g.view(keys, (v.ne[0], *keys.ne[1:]), keys.nb[1:])
            else:
                values = cache.get_v(il, hp.head_v(il), hp.n_head_kv(il))
        cur = self.build_attn_mha(q, keys, values, a.mask, il, kq_b=kq_b, sinks=sinks, v_mla=v_mla)
        if mla and iswa and a.k_rot is not None:
            cur = self.hadamard(cur, a.k_rot)
        elif a.v_rot is not None:
            cur = self.hadamard(cur, a.v_rot)
        return self.project(cur, il, wo, wo_bias)

    def project(self, cur: Tensor, il: int, wo: str | None = "attn_output", biased: bool = True) -> Tensor:
        """wo, its scale and its bias, where the file has them."""
        if wo is None:
            return cur
        weight, bias = self.lw(il, wo), self.lw(il, wo, "bias") if biased else None
        if weight is not None:
            cur = self.mm(weight, cur, self.lw(il, wo, "scale"))
        return cur if bias is None else self.g.add(cur, bias)

    def deepstack(self, cur: Tensor, index: int) -> Tensor:
        """Add the image features that a vision model's projector appended to the embeddings."""
        inp = self.inp_embd
        assert inp is not None
        part = self.g.view(inp, (self.n_embd, self.n_tokens), (inp.nb[1],), index * self.n_embd * 4)
        return self.g.add(cur, part)

    def select_outputs(self, il: int, out_ids: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """After the last layer's attention only the rows that are asked for go on."""
        if il != self.n_layer - 1:
            return tensors
        return tuple(self.g.get_rows(t, out_ids) for t in tensors)

    # the end

    def finish(self, cur: Tensor, *, head: str | None = "output", bias: bool = False) -> Tensor:
        """result_norm is `cur`; then the head, and the outputs that are never freed (set_outputs)."""
        self.t_embd = self.output(cur)
        if head is not None:
            weight = self.need(f"{head}.weight")
            cur = self.mm(weight, cur, self.w(f"{head}.scale"))
            b = self.w(f"{head}.bias") if bias else None
            if b is not None:
                cur = self.g.add(cur, b)
        return cur

    def done(self, logits: Tensor | None) -> Graph:
        """Expand the rest, pool if asked for, mark outputs."""
        if logits is not None:
            self.g.expand(self.output(logits))
        if self.c.embeddings:
            self.build_pooling()
        if self.c.n_sampled and logits is not None:
            self.build_sampling(logits)
        for t in self.outputs:
            t.is_output = True
        return self.g

    def release(self) -> None:
        """Let go of the graph; nothing of it is usable afterwards."""
        self.caches = {}
        self.g.release()

    def build_sampling(self, logits: Tensor) -> None:
        """build_sampling with the sampler of drafts, a top 10 of each sequence; a row is added so that idle ones have one."""
        g, per = self.g, min(self.n_seq_tokens, self.c.n_sampled)
        rows = min(per * self.n_seqs, self.n_outputs)
        padded = g.pad(logits, 0, 1)
        for row in range(rows):
            one = g.reshape(g.view(padded, (padded.ne[0],), (), row * padded.nb[1]), padded.ne[0])
            best = g.top_k(one, 10)
            g.expand(self.output(g.get_rows(g.reshape(one, 1, one.ne[0]), best)))
            g.expand(self.output(best))

    def build_pooling(self) -> None:
        """build_pooling: mean, cls, last, rank or none, over t_embd; then sentence-transformers' dense layers."""
        g, kind = self.g, self.c.pooling
        inp = self.t_embd
        if inp is None:
            raise LaunchRefused(f"{self.hp.architecture.name} has no embeddings: llama.cpp aborts")
        rank_mean = kind == "rank" and self.hp.pooling_type_cls == 1
        if kind == "none":
            cur = inp
        elif kind == "mean" or rank_mean:
            mean = g.input("mean", "f32", self.n_tokens, self.n_seqs)
            cur = g.mul_mat(g.cont(g.transpose(inp)), mean)
        else:
            cur = g.get_rows(inp, g.input("cls", "i32", self.n_seqs))
        if kind == "rank":
            cls = self.w("cls.weight")
            if cls is not None:
                cur = g.mul_mat(cls, cur)
                bias = self.w("cls.bias")
                if bias is not None:
                    cur = g.add(cur, bias)
                cur = g.unary("GELU" if self.arch == "modern-bert" else "TANH", cur)
                norm = self.w("cls.norm.weight")
                if norm is not None:
                    cur = self.build_norm(cur, norm, None, "layer")
            out = self.w("cls.output.weight")
            if out is not None:
                cur = g.mul_mat(out, cur)
                bias = self.w("cls.output.bias")
                if bias is not None:
                    cur = g.add(cur, bias)
            if self.arch in ("qwen3", "qwen3vl"):
                cur = g.soft_max(cur)
        g.expand(cur)
        for name in ("dense_2", "dense_3"):     # build_dense_out: what comes last is the output
            weight = self.w(f"{name}.weight")
            if weight is not None:
                cur = g.mul_mat(weight, cur)
                bias = self.w(f"{name}.bias") if name == "dense_2" else None
                if bias is not None:
                    cur = g.add(cur, bias)
        g.expand(self.output(cur))


__all__ = ["AttnInput", "Cache", "Llm", "States"]
