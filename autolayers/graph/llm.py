"""Building blocks of a model's graph, named as in llama.cpp's src/llama-graph.cpp (as modelled, see autolayers.builds).

An architecture (rows.py, models/) calls these in llama.cpp's order. The order in which tensors are made and expanded is
part of the result, because the allocator sees it.
"""

from __future__ import annotations

from ..errors import LaunchRefused, ModelError
from ..ggml.tensor import Graph, Tensor, row_size, type_size
from ..model.hparams import Hparams
from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Literal

    from ..builds import Rules
    from ..ggml.scheduler import Backend

    Norm = Literal["rms", "layer", "group"]
    Activation = Literal["silu", "gelu", "relu", "relu_sqr", "xielu", "swiglu", "geglu", "reglu", "swiglu_oai", "situ"]
    Gate = Literal["par", "seq"]
    Gating = Literal["softmax", "sigmoid", "softmax_weight", "sqrt_softplus"]

# llama_expert_gating_func_type; a file without the key means softmax
_GATING: dict[int, Gating] = {0: "softmax", 1: "softmax", 2: "sigmoid", 3: "softmax_weight", 4: "sqrt_softplus"}
_FLASH_KEYS = 256            # encoders had flash attention for multiples of so many keys (build_attn_mha)
_MASK_ROWS = 64                          # GGML_KQ_MASK_PAD; builds up to b4435 had 32, which takes less
_SPLIT_GLU = {"silu": "SWIGLU", "gelu": "GEGLU", "relu": "REGLU"}     # gate and up in one op


@dataclass(frozen=True)
class Routing:
    """How experts are chosen, run and weighed: the arguments of llama.cpp's build_moe_ffn that an architecture fixes.

    None: the file's key decides. Tensors are blk.<il>.<name>; one whose name is None is not used.
    """

    gating: Gating | None = None          # expert_gating_func
    norm_w: bool | None = None            # the chosen experts' weights are normed; expert_weights_norm
    w_scale: float | None = None          # and scaled, 0 and 1: not; expert_weights_scale
    act: Activation = "silu"
    select: Literal["probs", "logits", "sigmoid"] = "probs"    # what is ranked to choose
    weight_before: bool = False           # the weights are applied to the experts' input
    biases: bool = True                   # biases of the experts are added, if the file has them
    scales: bool = False                  # NVFP4 scales of the experts are applied
    up: str = "ffn_up_exps"
    gate: str | None = "ffn_gate_exps"
    down: str = "ffn_down_exps"
    gate_up: str | None = "ffn_gate_up_exps"
    probs_b: str | None = "exp_probs_b"   # added to what is ranked
    down_param: str | None = None         # "src1_f32": the product with `down` takes f32, not f16


class CacheView:
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
        return self.llm.graph.view(k, (head, n_head, self.n_kv, self.n_stream),
                               (row_size(k.type, head), row_size(k.type, width), row_size(k.type, width * k.ne[1])))

    def get_v(self, il: int, head: int, n_head: int) -> Tensor:
        v = self.layers[il][1]
        assert v is not None
        g, t = self.llm.graph, v.type
        width, size = v.ne[0], v.ne[1]
        if not self.v_trans:
            return g.view(v, (head, n_head, self.n_kv, self.n_stream),
                          (row_size(t, head), row_size(t, width), row_size(t, width * size)))
        return g.view(v, (self.n_kv, n_head, head, self.n_stream),
                      (row_size(t, size * head), row_size(t, size), row_size(t, size * width)))

    def cpy_k(self, cur: Tensor, ids: Tensor | None, il: int) -> Tensor:
        g, k = self.llm.graph, self.layers[il][0]
        width = cur.ne[0] * cur.ne[1]
        if ids is None:
            return g.cpy(cur, g.view(k, (cur.ne[2] * width,)))
        cur = g.view(cur, (width, cur.ne[2]), (cur.nb[2],))
        if k.ne[2] > 1:
            k = g.reshape(k, width, k.ne[1] * k.ne[2])
        return g.set_rows(k, cur, ids)

    def cpy_v(self, cur: Tensor, ids: Tensor | None, il: int) -> Tensor:
        g, v = self.llm.graph, self.layers[il][1]
        assert v is not None
        width, n_tokens = cur.ne[0] * cur.ne[1], cur.ne[2]
        if ids is None:
            cur = g.reshape(cur, width, n_tokens)
            if not self.v_trans:
                return g.cpy(cur, g.view(v, (n_tokens * width,)))
            size = type_size(v.type)
            return g.cpy(g.transpose(cur), g.view(v, (n_tokens, width), (v.ne[1] * size,)))
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


class StateView:
    """Recurrent states as the graph sees them: layers[il] is (r, s, p), or (kv, score) of a compressor."""

    def __init__(self, n_rows: int, layers: dict[int, tuple[Tensor | None, ...]]) -> None:
        self.n_rows = n_rows
        self.layers = layers
        self.ids: tuple[Tensor, Tensor, Tensor] | None = None     # which rows to start from (recurrent.build_rs)


class AttnInput:
    """Inputs of one kind of attention: row indices, mask, rotations (llm_graph_input_attn_*)."""

    def __init__(self, cache: CacheView | None, mask: Tensor | None, k_idxs: Tensor | None = None,
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

    def __init__(self, hparams: Hparams, cparams: Any, *, n_tokens: int, n_seqs: int, n_outputs: int,
                 fused_ops: dict[str, bool], lookup: Callable[[str], Tensor | None], caches: dict[str, Any],
                 backends: Sequence[Backend], dev_layer: Sequence[int], full_offload: bool) -> None:
        """`cparams` is a memory.context.Context; `lookup` gives a weight by its name, None where the file has none;
        `dev_layer` is the backend of each layer."""
        self.rules: Rules = cparams.rules
        self.graph = Graph(self.rules.clamp_copies)
        self.hparams = hparams
        self.cparams = cparams
        self.row = hparams.architecture
        self.n_tokens = n_tokens
        self.n_seqs = n_seqs
        self.n_seq_tokens = n_tokens // n_seqs
        self.n_outputs = n_outputs
        self.fused_ops = fused_ops           # which fused ops llama.cpp would build with
        self.flash_attn = fused_ops["flash_attn"]
        self.n_layer: int = hparams.n_layer
        self.kept: Sequence[int] | None = None            # the layers to build, None: all
        self.skips = False                                # a builder left the others out
        self.n_embd: int = hparams.n_embd
        self.n_head: int = hparams.n_head(0)
        self.n_head_kv: int = hparams.n_head_kv(0)
        self.head_k: int = hparams.head_k(0)
        self.head_v: int = hparams.head_v(0)
        self.n_expert: int = hparams.n_expert
        self.n_expert_used: int = hparams.n_expert_used(0)
        self.caches = caches
        self.backends = backends
        self.dev_layer = dev_layer
        self._pins = n_tokens < 32 or full_offload
        self._lookup = lookup
        self.fused_nodes: list[tuple[str, Tensor, int]] = []    # (kind, node, layer) for llama.cpp's auto decisions
        self.attn_soft_cap = False                        # attention logits are capped
        self.t_embd: Tensor | None = None
        self.outputs: list[Tensor] = []
        self.inp_tokens: Tensor | None = None
        self.inp_embd: Tensor | None = None               # t_inp_embd: with the rows of deepstack models
        self.attn_temp: Tensor | None = None              # inp_attn_scale, where the model has it

    @property
    def layers(self) -> Sequence[int]:
        """The layers to build: all, or those that `kept` has, by a builder that runs each of them once."""
        self.skips = self.kept is not None
        return range(self.n_layer) if self.kept is None else self.kept

    # weights

    def weight(self, name: str) -> Tensor | None:
        """A weight by its full name, None where the file has none."""
        return self._lookup(name)

    def layer_weight(self, il: int, name: str, suffix: str = "weight") -> Tensor | None:
        """blk.<il>.<name>.<suffix>, None where the file has none; a few tensors carry no suffix at all."""
        tensor = self._lookup(f"blk.{il}.{name}.{suffix}")
        if tensor is None and suffix == "weight":
            return self._lookup(f"blk.{il}.{name}")
        return tensor

    def need(self, name: str) -> Tensor:
        """A weight that every file of the architecture has. Raises ModelError."""
        tensor = self._lookup(name)
        if tensor is None:
            raise ModelError(f"a {self.row.name} model without {name}: llama.cpp does not load it")
        return tensor

    def need_layer(self, il: int, name: str, suffix: str = "weight") -> Tensor:
        """A weight that every such layer has. Raises ModelError."""
        tensor = self.layer_weight(il, name, suffix)
        return self.need(f"blk.{il}.{name}.{suffix}") if tensor is None else tensor

    def rename_weights(self, rename: Callable[[str], str]) -> None:
        """Look weights up under other names from now on."""
        lookup = self._lookup
        self._lookup = lambda name: lookup(rename(name))

    def share_blocks(self, physical: Callable[[int], int], scales: bool = True) -> None:
        """Let layer il read the weights of block physical(il); NVFP4 scales stay the layer's own unless `scales`."""

        def rename(name: str) -> str:
            if name.startswith("blk."):
                if scales or not name.endswith(".scale"):
                    _, il, rest = name.split(".", 2)
                    name = f"blk.{physical(int(il))}.{rest}"
            elif "@" in name:
                base, il = name.split("@")
                name = f"{base}@{physical(int(il))}"
            return name

        self.rename_weights(rename)

    def rope_factors(self, il: int) -> Tensor | None:
        """get_rope_factors: llama 3's frequencies, or LongRoPE's by the context's length."""
        freqs = self._lookup(f"rope_freqs.weight@{il}")
        if freqs is not None:
            return freqs
        kind = "long" if self.cparams.n_ctx_seq > self.hparams.n_ctx_orig_yarn else "short"
        return self._lookup(f"rope_factors_{kind}.weight@{il}")

    # pins and outputs

    def pin(self, tensor: Tensor, il: int) -> None:
        """graph_get_cb: nodes that llama.cpp names "norm" or "l_last" are pinned to their layer's backend."""
        if self._pins and il >= 0:
            b = self.dev_layer[il]
            if self.backends[b].supports_op(tensor):
                tensor.pinned = b

    def output(self, tensor: Tensor) -> Tensor:
        """Mark a tensor that is read after the graph has run (ggml_set_output)."""
        self.outputs.append(tensor)
        return tensor

    # inputs

    def build_inp_embd(self, scale: bool = False) -> Tensor:
        """The embeddings of tokens, or what comes in their place: [n_embd, n_tokens]; `scale`: those of tokens are
        multiplied by a constant."""
        g, hp, n = self.graph, self.hparams, self.n_tokens
        n_embd_inp, table = hp.n_embd_inp, self.need("token_embd.weight")
        mixed = self.rules.mixed_input and self.row.mixed_batch and self.cparams.kind == "default"
        tokens = self.inp_tokens = g.input("inp_tokens", "i32", n)
        embd = g.input("inp_embd", "f32", n_embd_inp, n) if self.rules.embeddings_input else None
        rows = [g.get_rows(table, tokens)]
        if mixed:
            rows.append(g.get_rows(table, g.input("inp_mixed_tokens", "i32", n)))
        if self.rules.embeddings_first:
            for row in rows:
                g.expand(row)
        if n_embd_inp != self.n_embd:
            rows = [g.pad(row, n_embd_inp - self.n_embd) for row in rows]
        cur = rows[0]
        if embd is not None:
            g.expand(cur)          # ggml_build_forward_select visits all alternatives
            g.expand(embd)
        if mixed:
            slots, copy = g.input("inp_mixed_slots", "i64", n), g.dup(g.input("inp_mixed_embd", "f32", n_embd_inp, n))
            g.expand(g.set_rows(copy, rows[1], slots))
        self.inp_embd = cur
        if n_embd_inp != self.n_embd:
            cur = g.view(cur, (self.n_embd, n), (cur.nb[1],))
        by_row = self.rules.mixed_input and (scale or (hp.f_embedding_scale != 0.0 and hp.n_deepstack_layers > 0))
        if hp.f_embedding_scale != 0.0 and not (by_row and hp.n_deepstack_layers > 0):
            if not cur.contiguous():
                cur = g.cont(cur)
            cur = g.scale(cur)
        if by_row:
            factors = g.input("inp_scale_rows", "f32", 1, n)
            if not cur.contiguous():
                cur = g.cont(cur)
            cur = g.mul(cur, factors)
        if self.rules.embeddings_at_once:
            g.expand(cur)
        return g.scale(cur) if scale and not by_row else cur

    @property
    def crops_early(self) -> bool:
        """crop_before_nextn: rows are picked in the last layer, because no MTP block reads the others."""
        return self.rules.rows_before_nextn and not self.cparams.load_mtp

    def build_inp_pos(self) -> Tensor:
        return self.graph.input("inp_pos", "i32", self.n_tokens * self.hparams.n_pos_per_embd)

    def build_inp_out_ids(self) -> Tensor:
        return self.graph.input("out_ids", "i32", self.n_outputs)

    def build_inp_attn_scale(self) -> Tensor:
        return self.graph.input("inp_attn_scale", "f32", 1, 1, self.n_tokens)

    def _mask(self, cache: CacheView, type_: str) -> Tensor:
        n_stream = 1 if self.cparams.kv_unified else self.n_seqs
        return self.mask_input("attn_inp_kq_mask", type_, cache.n_kv, self.n_tokens // n_stream, 1, n_stream)

    def mask_input(self, name: str, type_: str, *ne: int) -> Tensor:
        """A mask in the type that attention reads; `type_`: that type, where it is not attention that decides."""
        type_ = type_ or ("f16" if self.flash_attn else "f32")
        if self.rules.pads_masks:
            ne = (ne[0], -(-ne[1] // _MASK_ROWS) * _MASK_ROWS, *ne[2:])
        if type_ == "f16" and not self.rules.f16_mask:
            return self.graph.cast(self.graph.input(name, "f32", *ne), "f16")
        return self.graph.input(name, type_, *ne)

    def attn_input(self, cache: CacheView, with_v: bool = True, rotations: bool = True,
                   mask_type: str = "") -> AttnInput:
        """The inputs of attention to `cache`; MLA has none for V."""
        g, n = self.graph, self.n_tokens
        k_idxs = v_idxs = None
        if self.rules.set_rows:
            k_idxs = g.input("attn_inp_k_idxs", "i64", n)
            n_v = n * cache.n_embd_v_gqa_max if cache.v_trans else n
            v_idxs = g.input("attn_inp_v_idxs", "i64", n_v) if with_v else None
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
        if not self.rules.window_cache:
            base = self.attn_input(self.caches["attn"])
            base.swa = AttnInput(base.cache, self._mask(self.caches["attn"], ""))
            return base
        rotations = "recurrent" not in self.caches     # build_inp_mem_hybrid_iswa builds none
        base = self.attn_input(self.caches["attn"], rotations=rotations)
        base.swa = self.attn_input(self.caches["swa"], rotations=rotations and self.rules.rotates_apart)
        if not self.rules.rotates_apart:
            base.swa.k_rot, base.swa.v_rot = base.k_rot, base.v_rot
        return base

    def build_attn_inp_k_iswa(self) -> AttnInput:
        base = self.attn_input(self.caches["attn"], with_v=False)
        base.swa = self.attn_input(self.caches["swa"], with_v=False)
        return base

    def build_attn_inp_no_cache(self) -> AttnInput:
        n = self.n_tokens
        inp = AttnInput(None, self.mask_input("self_kq_mask", "", n, n))
        if self.hparams.swa_type != "none":
            inp.swa = AttnInput(None, self.mask_input("self_kq_mask_swa", "", n, n))
        return inp

    def build_attn_inp(self) -> AttnInput:
        """The input that fits the model's caches: sliding window or not, only keys (MLA), or no cache."""
        if "attn" not in self.caches or (self.row.memory == "none" and "swa" not in self.caches):
            return self.build_attn_inp_no_cache()
        windows = "swa" in self.caches or (self.hparams.swa_type != "none" and not self.rules.window_cache)
        if self.hparams.is_mla and self.rules.mla_keys_only:
            return self.build_attn_inp_k_iswa() if windows else self.build_attn_inp_k()
        return self.build_attn_inp_kv_iswa() if windows else self.build_attn_inp_kv()

    # small blocks

    def build_norm(self, cur: Tensor, weight: Tensor | None, bias: Tensor | None = None, kind: Norm = "rms",
                   il: int = -1) -> Tensor:
        """A norm, its weight and its bias; pinned to layer `il` if that is given."""
        g = self.graph
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

    def build_lora_mm(self, weight: Tensor, cur: Tensor, scale: Tensor | None = None) -> Tensor:
        """A matmul, and the scale of an NVFP4 weight."""
        result = self.graph.mul_mat(weight, cur)
        return result if scale is None else self.graph.mul(result, scale)

    def rope_end(self, heads: Tensor, n_rot: int, pos: Tensor, factors: Tensor | None = None, *,
                 back: bool = False, first: bool = False) -> Tensor:
        """ggml_rope_set_offset: heads [head, n_head, n_tokens], the last `n_rot` elements of each rotated; before
        Rules.ropes_end a part that is joined with the rest, in front of it if `first`."""
        g = self.graph

        def rotated(t: Tensor) -> Tensor:
            return g.rope_back(t, pos) if back else g.rope(t, pos, factors)

        if self.rules.ropes_end:
            return rotated(heads)
        (head, n_head, n), size = heads.ne[:3], heads.nb[0]
        strides = (size * head, size * head * n_head)
        rest = g.view(heads, (head - n_rot, n_head, n), strides)
        end = rotated(g.view(heads, (n_rot, n_head, n), strides, size * (head - n_rot)))
        return g.concat(end, rest, 0) if first else g.concat(rest, end, 0)

    def build_lora_mm_id(self, weight: Tensor, cur: Tensor, ids: Tensor, scale: Tensor | None = None,
                         param: object = None) -> Tensor:
        """A matmul by experts, and their NVFP4 scales."""
        g = self.graph
        result = g.mul_mat_id(weight, cur, ids, param)
        if scale is not None:
            n_expert = scale.ne[0]
            s = g.reshape(scale, 1, n_expert, 1)
            s = g.repeat(s, 1, n_expert, cur.ne[2], 1)
            result = g.mul(result, g.get_rows(s, ids))
        return result

    def linear(self, il: int, name: str, cur: Tensor, scale: bool = False) -> Tensor:
        """build_lora_mm with blk.<il>.<name>; `scale`: its NVFP4 scale is applied, if the file has one."""
        weight = self.need_layer(il, name)
        return self.build_lora_mm(weight, cur, self.layer_weight(il, name, "scale") if scale else None)

    def rms_norm(self, il: int, name: str, cur: Tensor) -> Tensor:
        """build_norm with blk.<il>.<name>, if the file has it."""
        return self.build_norm(cur, self.layer_weight(il, name), None, "rms", il)

    def hadamard(self, cur: Tensor, rot: Tensor) -> Tensor:
        """llama_mul_mat_hadamard: rows of `cur` rotated in parts of rot.ne[0]."""
        g, n = self.graph, rot.ne[0]
        if cur.contiguous():
            flat = g.reshape(cur, n, cur.nelements // n)
        elif self.rules.rotates_views:
            flat = g.cont(cur, n, cur.nelements // n)
        else:
            raise LaunchRefused(f"llama.cpp build {self.rules.number} aborts with a quantised cache where one matrix "
                                "makes Q, K and V; use -ctk f16 -ctv f16")
        return g.reshape(g.mul_mat(rot, flat, "hadamard"), *cur.ne)

    def build_qkv(self, cur: Tensor, il: int, n_head: int = 0, n_head_kv: int = 0, head_k: int = 0, head_v: int = 0,
                  *, reshape: bool = True, head_q: int = 0, scales: bool = True, plain: bool = False,
                  roped: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V by one fused projection or three, with biases and clamp; by heads if `reshape`.

        Sizes are the layer's unless given. `scales`: the NVFP4 scale of a fused projection is applied; `plain`: three
        projections have neither scales nor biases; `roped`: Q and K will be.
        """
        g, hp, n = self.graph, self.hparams, self.n_tokens
        n_head = n_head or hp.n_head(il)
        n_head_kv = n_head_kv or hp.n_head_kv(il)
        head_k = head_k or hp.head_k(il)
        head_v = head_v or hp.head_v(il)
        head_q = head_q or head_k
        clamp = reshape and hp.f_clamp_kqv > 0.0
        if self.layer_weight(il, "attn_qkv") is not None:
            qkv = self._fused_qkv(cur, il, scales)
            if clamp:
                qkv = g.clamp(qkv)
            size, row = qkv.nb[0], qkv.nb[1]
            at_k = head_q * n_head
            at_v = at_k + head_k * n_head_kv
            if reshape:
                made = []
                views_qk = self.rules.views_v or (self.rules.views_qk and roped)
                for head, heads, at, viewed in ((head_q, n_head, 0, views_qk), (head_k, n_head_kv, at_k, views_qk),
                                                (head_v, n_head_kv, at_v, self.rules.views_v)):
                    if viewed:
                        made.append(g.view(qkv, (head, heads, n), (size * head, row), size * at))
                    else:
                        part = g.cont(g.view(qkv, (head * heads, n), (row,), size * at))
                        made.append(g.reshape(part, head, heads, n))
                q, k, v = made
                return q, k, v
            parts = [g.view(qkv, (width, n), (row,), size * at)
                     for width, at in ((at_k, 0), (at_v - at_k, at_k), (head_v * n_head_kv, at_v))]
            q, k, v = map(g.cont, parts)
            return q, k, v
        made = []
        for x in "qkv":
            t = self.linear(il, f"attn_{x}", cur, scale=not plain)
            bias = None if plain else self.layer_weight(il, f"attn_{x}", "bias")
            if bias is not None:
                t = g.add(t, bias)
            made.append(g.clamp(t) if clamp else t)
        q, k, v = made
        if reshape:
            q = g.reshape(q, head_q, n_head, n)
            k = g.reshape(k, head_k, n_head_kv, n)
            v = g.reshape(v, head_v, n_head_kv, n)
        return q, k, v

    def _fused_qkv(self, cur: Tensor, il: int, scales: bool) -> Tensor:
        """The fused projection with its bias, or with the three of Q, K and V."""
        g = self.graph
        qkv = self.linear(il, "attn_qkv", cur, scales)
        bias = self.layer_weight(il, "attn_qkv", "bias")
        if bias is None:
            q, k, v = (self.layer_weight(il, f"attn_{x}", "bias") for x in "qkv")
            if q is None or k is None or v is None:
                return qkv
            bias = g.concat(g.concat(q, k, 0), v, 0)
        return g.add(qkv, bias)

    def add_up(self, parts: list[Tensor]) -> Tensor:
        """The sum of one or more tensors, from the left."""
        total = parts[0]
        for part in parts[1:]:
            total = self.graph.add(total, part)
        return total

    def concat_all(self, parts: list[Tensor], dim: int) -> Tensor:
        """One or more tensors, one after the other in dimension `dim`."""
        joined = parts[0]
        for part in parts[1:]:
            joined = self.graph.concat(joined, part, dim)
        return joined

    # feed-forward

    def swiglu_limit(self, which: Literal["exp", "shexp"], il: int) -> float:
        """swiglu_clamp_exp or swiglu_clamp_shexp of a layer: the bound of its SwiGLU, 0 without one."""
        kind = self.row.swiglu_clamp
        if not kind or (kind == "experts" and which == "shexp") or (kind == "fused" and not self.hparams.dsv4_hc_mult):
            return 0.0
        key = f"swiglu_clamp_{which}"
        if kind == "fused" and self.hparams.get(key) is None:
            key = "swiglu_clamp_exp"
        return float(self.hparams.number_at(key, il, 0.0))

    def build_ffn(self, cur: Tensor, il: int, act: Activation = "silu", gate: Gate | None = "par", *,
                  up: str = "ffn_up", gate_name: str = "ffn_gate", down: str | None = "ffn_down",
                  act_scales: Tensor | None = None, scales: bool = True, biases: bool = True) -> Tensor:
        """A feed-forward network over blk.<il>.<names>; a missing tensor or name is a missing step.

        `gate`: the gate reads the input (par), what `up` gives (seq), or there is none. `biases` and `scales` (NVFP4):
        whether the architecture applies them here if the file has them.
        """
        g = self.graph

        def linear(name: str, x: Tensor) -> Tensor | None:
            weight = self.layer_weight(il, name)
            if weight is None:
                return None
            x = g.mul_mat(weight, x)
            bias = self.layer_weight(il, name, "bias") if biases else None
            scale = self.layer_weight(il, name, "scale") if scales else None
            if bias is not None:
                x = g.add(x, bias)
            return x if scale is None else g.mul(x, scale)

        made = linear(up, cur)
        tmp = cur if made is None else made
        gated = linear(gate_name, tmp if gate == "seq" else cur) if gate is not None else None
        cur = tmp if gated is None else gated
        parallel = gated is not None and gate == "par"
        cur, parallel = self._activate(cur, tmp, act, parallel, self.swiglu_limit("shexp", il), act_scales)
        if self.rules.expands_gates:
            g.expand(cur)
        if parallel:
            cur = g.mul(cur, tmp)
        last = linear(down, cur) if down is not None else None
        return cur if last is None else last

    def _activate(self, cur: Tensor, tmp: Tensor, act: Activation, parallel: bool, limit: float,
                  act_scales: Tensor | None) -> tuple[Tensor, bool]:
        """The activation; the flag says whether gate and up still have to be multiplied."""
        g = self.graph
        if act == "silu" and parallel and limit > 1e-6:
            if self.row.swiglu_clamp == "fused":
                return g.glu("SWIGLU_CLAMP", cur, tmp), False
            tmp = g.clamp(tmp)
            cur = g.clamp(g.unary("SILU", cur))
            return g.mul(cur, tmp), False
        if act in _SPLIT_GLU:
            if parallel and self.rules.glu_op:
                return g.glu(_SPLIT_GLU[act], cur, tmp), False
            cur = g.unary(act.upper(), cur)
            if act == "gelu" and act_scales is not None:
                cur = g.div(cur, act_scales)
            return cur, parallel
        if act == "relu_sqr":
            return g.sqr(g.unary("RELU", cur)), parallel
        if act == "xielu":
            return g.unary("XIELU", cur), parallel
        if act == "swiglu_oai":
            return g.glu("SWIGLU_OAI", cur, tmp), False
        if not self.rules.glu_op:
            half = cur.ne[0] // 2
            first, second = (g.cont(g.view(cur, (half, cur.ne[1]), (cur.nb[1],), at * cur.nb[0])) for at in (0, half))
            return g.mul(g.unary("SILU" if act == "swiglu" else "GELU", first), second), parallel
        return g.glu(act.upper(), cur), parallel

    def build_moe_ffn(self, cur: Tensor, il: int, routing: Routing, *, probs_in: Tensor | None = None,
                      selected_in: Tensor | None = None, n_expert: int = 0, n_expert_used: int = 0) -> Tensor:
        """Choose experts, run them, weigh and sum them, in the order of llama.cpp's build_moe_ffn.

        `probs_in` are the router's logits where they are not of `cur`, `selected_in` the experts where a table chooses
        them; n_expert and n_expert_used are the model's unless given.
        """
        g, hp = self.graph, self.hparams
        n_used = n_expert_used or self.n_expert_used
        n_embd, n = cur.ne[0], cur.ne[1]
        logits = self.linear(il, "ffn_gate_inp", cur) if probs_in is None else probs_in
        selected, weights = self._choose_experts(logits, il, routing, n_expert or self.n_expert, n_used, selected_in)
        if self.rules.expands_weights:
            g.expand(weights)
        cur = g.reshape(cur, n_embd, 1, n)
        if routing.weight_before:
            cur = g.mul(g.repeat(cur, n_embd, n_used, n, 1), weights)
        experts = self._run_experts(cur, il, routing, selected)
        if not routing.weight_before:
            experts = g.mul(experts, weights)
        if self.rules.expands_views:
            g.expand(experts)
        views = []
        for i in range(hp.n_expert_used(il)):
            views.append(g.view(experts, (n_embd, n), (experts.nb[2],), i * experts.nb[1]))
            if self.rules.expands_views:
                g.expand(views[-1])
        out = views[0]
        for v in views[1:]:
            out = g.add(out, v)
            if self.rules.expands_sums:
                g.expand(out)
        return g.cont(out) if len(views) == 1 else out

    def _choose_experts(self, logits: Tensor, il: int, routing: Routing, n_expert: int, n_used: int,
                        selected_in: Tensor | None) -> tuple[Tensor, Tensor]:
        """The first half of build_moe_ffn: (the chosen experts, their weights [1, n_used, n_tokens])."""
        g, hp, n = self.graph, self.hparams, logits.ne[1]
        gating = routing.gating or _GATING[hp.expert_gating_func]
        norm_w = hp.expert_weights_norm if routing.norm_w is None else routing.norm_w
        w_scale = hp.expert_weights_scale if routing.w_scale is None else routing.w_scale
        bias = self.layer_weight(il, "ffn_gate_inp", "bias") if routing.biases else None
        if bias is not None:
            logits = g.add(logits, bias)
        if gating == "softmax":
            probs = g.soft_max(logits)
        elif gating == "sigmoid":
            probs = g.unary("SIGMOID", logits)
        elif gating == "sqrt_softplus":
            probs = g.sqrt(g.unary("SOFTPLUS", logits))
        else:
            probs = logits
        ranked = probs
        if routing.probs_b is not None:
            extra = self.layer_weight(il, routing.probs_b, "bias")
            if extra is None:
                extra = self.layer_weight(il, routing.probs_b)
            if extra is not None:
                ranked = g.add(probs, extra)
        if routing.select == "logits":
            ranked = logits
        elif routing.select == "sigmoid":
            ranked = g.unary("SIGMOID", logits)
        if hp.n_expert_groups > 1 and self.rules.groups_experts:
            ranked = self._best_groups(ranked, n_expert)
        selected = g.argsort_top_k(ranked, n_used) if selected_in is None else selected_in
        if n_expert != self.n_expert:        # grovemoe's chunk experts: one of them serves a group of experts
            selected = g.cast(g.scale(g.cast(selected, "f32")), "i32")
        weights = g.get_rows(g.reshape(probs, 1, self.n_expert, n), selected)
        if gating == "softmax_weight":
            weights = g.reshape(g.soft_max(g.reshape(weights, n_used, n)), 1, n_used, n)
        if norm_w:
            weights = g.reshape(weights, n_used, n)
            total = g.sum_rows(weights)
            if self.rules.clamps_weights:
                total = g.clamp(total)
            weights = g.reshape(g.div(weights, total), 1, n_used, n)
        if w_scale not in (0.0, 1.0):
            weights = g.scale(weights)
        return selected, weights

    def _best_groups(self, ranked: Tensor, n_expert: int) -> Tensor:
        """-inf for the experts of all but the best groups (n_group_used of n_expert_groups)."""
        g, hp, n = self.graph, self.hparams, ranked.ne[1]
        n_groups = hp.n_expert_groups
        selection = g.reshape(ranked, n_expert // n_groups, n_groups, n)
        scores = g.argsort_top_k(selection, 2)
        scores = g.get_rows(g.reshape(selection, 1, *selection.ne[:3]), scores)
        scores = g.sum_rows(g.reshape(scores, *scores.ne[1:]))
        scores = g.reshape(scores, scores.ne[1], scores.ne[2])
        chosen = g.argsort_top_k(scores, hp.n_group_used)
        picked = g.get_rows(selection, chosen)
        return g.reshape(g.set_rows(g.fill(selection), picked, chosen), n_expert, n)

    def _run_experts(self, cur: Tensor, il: int, routing: Routing, selected: Tensor) -> Tensor:
        """The second half of build_moe_ffn: what each chosen expert makes of its input, [n_embd, n_used, n_tokens]."""
        g = self.graph

        def scale(name: str) -> Tensor | None:
            return self.layer_weight(il, name, "scale") if routing.scales else None

        def biased(x: Tensor, name: str | None) -> Tensor:
            bias = self.layer_weight(il, name, "bias") if routing.biases and name is not None else None
            return x if bias is None else g.add_id(x, bias, selected)

        merged = self.layer_weight(il, routing.gate_up) if routing.gate_up is not None else None
        gate = None
        if merged is not None:
            both = biased(self.build_lora_mm_id(merged, cur, selected, scale(routing.up)), routing.gate_up)
            n_ff = both.ne[0] // 2
            cur, up = (g.view(both, (n_ff, *both.ne[1:3]), both.nb[1:3], at) for at in (0, n_ff * both.nb[0]))
        else:
            up = self.build_lora_mm_id(self.need_layer(il, routing.up), cur, selected, scale(routing.up))
            up = biased(up, routing.up)
            if routing.gate is not None:
                gate = self.layer_weight(il, routing.gate)
            if gate is not None and routing.gate is not None:
                cur = self.build_lora_mm_id(gate, cur, selected, scale(routing.gate))
            else:
                cur = up
            cur = biased(cur, routing.gate)
        limit = self.swiglu_limit("exp", il) if gate is not None else 0.0
        cur = self._activate_experts(cur, up, routing.act, gate is not None or merged is not None, limit)
        if self.rules.expands_gates:
            g.expand(cur)
        down = self.need_layer(il, routing.down)
        return biased(self.build_lora_mm_id(down, cur, selected, scale(routing.down), routing.down_param), routing.down)

    def _activate_experts(self, cur: Tensor, up: Tensor, act: Activation, has_gate: bool, limit: float) -> Tensor:
        g = self.graph
        if act == "silu" and limit > 1e-6:
            if self.row.swiglu_clamp in ("experts", "fused"):
                return g.glu("SWIGLU_CLAMP", cur, up)
            up = g.clamp(up)
            return g.mul(g.clamp(g.unary("SILU", cur)), up)
        if act == "situ":
            return self.situ(cur, up)
        if act == "swiglu_oai":
            return g.glu("SWIGLU_OAI", cur, up)
        if act == "relu_sqr":
            return g.sqr(g.unary("RELU", cur))
        if has_gate and self.rules.glu_op:
            return g.glu(_SPLIT_GLU[act], cur, up)
        cur = g.unary(act.upper(), cur)
        return g.mul(cur, up) if has_gate else cur

    def situ(self, gate: Tensor, up: Tensor) -> Tensor:
        """LLM_FFN_SITU: beta tanh(gate / beta) sigmoid(gate) times up, which is bounded the same way."""
        g = self.graph
        cur = g.mul(g.scale(g.unary("TANH", g.scale(gate))), g.unary("SIGMOID", gate))
        if self.hparams.situ_linear_beta > 0.0:
            up = g.scale(g.unary("TANH", g.scale(up)))
        return g.mul(cur, up)

    # attention

    def build_attn_mha(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, il: int, *,
                       kq_b: Tensor | None = None, sinks: Tensor | None = None, v_mla: Tensor | None = None,
                       n_kv_max: int = 0, cached: bool = True) -> Tensor:
        """Softmax attention, [n_embd_head_v * n_head, n_tokens].

        `kq_b` is added to the scores, which rules out flash attention; `n_kv_max` bounds the cells that a sparse mask
        leaves open. `cached`: k and v are of a cache, not of an encoder.
        """
        g, hp = self.graph, self.hparams
        v_trans = v.nb[1] > v.nb[2]
        n_stream = k.ne[3]
        per = q.ne[2] // n_stream
        q = g.view(q, (q.ne[0], q.ne[1], per, n_stream), (q.nb[1], q.nb[2], q.nb[2] * per))
        q = g.permute(q, 0, 2, 1, 3)
        k = g.permute(k, 0, 2, 1, 3)
        v = g.permute(v, 0, 2, 1, 3)
        takes = cached or self.rules.flash_any_keys or (self.rules.encoders_flash and k.ne[1] % _FLASH_KEYS == 0)
        if self.flash_attn and kq_b is None and takes:
            if v_trans:
                v = g.transpose(v)
            if k.type == "f32" and self.rules.casts_f32_cache:
                k = g.cast(k, "f16")
            if v.type == "f32" and self.rules.casts_f32_cache:
                v = g.cast(v, "f16")
            cur = g.flash_attn(q, k, v, mask, sinks, hp.f_max_alibi_bias > 0.0, n_kv_max, self.attn_soft_cap)
            self.fused_nodes.append(("flash_attn", cur, il))
            n_tokens = per * n_stream
            if v_mla is not None and self.rules.mla_heads_at_once:
                cur = g.mul_mat(v_mla, g.permute(cur, 0, 2, 1, 3))
                cur = g.cont(g.permute(cur, 0, 2, 1, 3))
            elif v_mla is not None:
                cur = g.mul_mat(v_mla, g.reshape(cur, v_mla.ne[0], 1, cur.ne[1], n_tokens))
            cur = g.reshape(cur, cur.nelements // n_tokens, n_tokens)
        else:
            kq = g.mul_mat(k, q)
            if self.attn_soft_cap:
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
            if not self.cparams.offload_kqv:
                cur.pinned = len(self.backends) - 1
        g.expand(cur)
        return cur

    def build_attn(self, inp: AttnInput, q: Tensor, k: Tensor | None, v: Tensor | None, il: int, *,
                   wo: str | None = "attn_output", kq_b: Tensor | None = None, sinks: Tensor | None = None,
                   v_mla: Tensor | None = None, mla: bool = False, wo_bias: bool = True) -> Tensor:
        """Store k and v in the cache (if any), attend, project.

        `mla`: the cache holds K, whose first part is V (llm_graph_input_attn_k).
        """
        g, hp = self.graph, self.hparams
        a = inp.at(hp.is_swa(il))
        iswa = inp.swa is not None
        cache = a.cache
        mla = mla and self.rules.mla_keys_only
        if a.k_rot is not None:
            q = self.hadamard(q, a.k_rot)
            if k is not None:
                k = self.hadamard(k, a.k_rot)
        if a.v_rot is not None and v is not None and not mla:
            v = self.hadamard(v, a.v_rot)
        # expanded together so that they are not reordered; the plain cache wants k last, iSWA and no cache v last
        late_k = cache is not None and not iswa and self.rules.keys_last
        order = (q, v, k) if late_k else (q, k) if mla and iswa else (q, k, v)
        for t in order:
            if t is not None:
                g.expand(t)
        if cache is None:
            assert k is not None and v is not None
            keys, values = k, v
        else:
            if k is not None:
                g.expand(cache.cpy_k(k, a.k_idxs, il))
            if v is not None and not mla:
                g.expand(cache.cpy_v(v, a.v_idxs, il))
            keys = cache.get_k(il, hp.head_k(il), hp.n_head_kv(il))
            if mla:
                assert v is not None
                values = g.view(keys, (v.ne[0], *keys.ne[1:]), keys.nb[1:])
            else:
                values = cache.get_v(il, hp.head_v(il), hp.n_head_kv(il))
        cur = self.build_attn_mha(q, keys, values, a.mask, il, kq_b=kq_b, sinks=sinks, v_mla=v_mla,
                                   cached=cache is not None)
        if mla and iswa and a.k_rot is not None:
            cur = self.hadamard(cur, a.k_rot)
        elif a.v_rot is not None:
            cur = self.hadamard(cur, a.v_rot)
        return self.project(cur, il, wo, wo_bias)

    def project(self, cur: Tensor, il: int, wo: str | None = "attn_output", biased: bool = True) -> Tensor:
        """wo, its scale and its bias, where the file has them."""
        if wo is None:
            return cur
        weight, bias = self.layer_weight(il, wo), self.layer_weight(il, wo, "bias") if biased else None
        if weight is not None:
            cur = self.build_lora_mm(weight, cur, self.layer_weight(il, wo, "scale"))
        return cur if bias is None else self.graph.add(cur, bias)

    def deepstack(self, cur: Tensor, index: int) -> Tensor:
        """Add the image features that a vision model's projector appended to the embeddings."""
        inp = self.inp_embd
        assert inp is not None
        part = self.graph.view(inp, (self.n_embd, self.n_tokens), (inp.nb[1],), index * self.n_embd * 4)
        return self.graph.add(cur, part)

    def select_outputs(self, il: int, out_ids: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """In the last layer, the rows whose logits are requested (inp_out_ids)."""
        if il != self.n_layer - 1:
            return tensors
        return tuple(self.graph.get_rows(t, out_ids) for t in tensors)

    # the end

    def finish(self, cur: Tensor, *, head: str | None = "output", bias: bool = False) -> Tensor:
        """result_norm is `cur`; then the head, and the outputs that are never freed (set_outputs)."""
        self.t_embd = self.output(cur)
        if head is not None:
            weight = self.need(f"{head}.weight")
            cur = self.build_lora_mm(weight, cur, self.weight(f"{head}.scale"))
            b = self.weight(f"{head}.bias") if bias else None
            if b is not None:
                cur = self.graph.add(cur, b)
        return cur

    def done(self, logits: Tensor | None) -> Graph:
        """Expand the rest, pool if asked for, mark outputs."""
        if logits is not None:
            self.graph.expand(self.output(logits))
        if self.cparams.embeddings:
            self.build_pooling()
        if self.cparams.n_sampled and logits is not None:
            self.build_sampling(logits)
        if self.rules.keeps_outputs:
            for t in self.outputs:
                t.is_output = True
        return self.graph

    def release(self) -> None:
        """Free the graph; nothing of it is usable afterwards."""
        self.caches = {}
        self.graph.release()

    def build_sampling(self, logits: Tensor) -> None:
        """The sampler of drafts, a top 10 of each sequence; one more row is what idle sequences sample from."""
        g, per = self.graph, min(self.n_seq_tokens, self.cparams.n_sampled)
        rows = min(per * self.n_seqs, self.n_outputs)
        padded = g.pad(logits, 0, 1)
        for row in range(rows):
            one = g.reshape(g.view(padded, (padded.ne[0],), (), row * padded.nb[1]), padded.ne[0])
            best = g.top_k(one, 10)
            g.expand(self.output(g.get_rows(g.reshape(one, 1, one.ne[0]), best)))
            g.expand(self.output(best))

    def build_pooling(self) -> None:
        """build_pooling: mean, cls, last, rank or none, over t_embd; then sentence-transformers' dense layers."""
        g, kind = self.graph, self.cparams.pooling
        inp = self.t_embd
        if inp is None:
            raise LaunchRefused(f"{self.hparams.architecture.name} has no embeddings: llama.cpp aborts")
        rank_mean = kind == "rank" and self.hparams.pooling_type_cls == 1
        if kind == "none":
            cur = inp
        elif kind == "mean" or rank_mean:
            mean = g.input("mean", "f32", self.n_tokens, self.n_seqs if self.rules.pools_sequences else self.n_tokens)
            cur = g.mul_mat(g.cont(g.transpose(inp)), mean)
        else:
            cur = g.get_rows(inp, g.input("cls", "i32", self.n_seqs if self.rules.pools_sequences else self.n_tokens))
        if kind == "rank":
            if self.weight("cls.weight") is not None:
                cur = g.unary(self.row.cls_act, self.dense(cur, "cls"))
                norm = self.weight("cls.norm.weight")
                if norm is not None:
                    cur = self.build_norm(cur, norm, None, "layer")
            cur = self.dense(cur, "cls.output")
            if self.row.cls_softmax:
                cur = g.soft_max(cur)
        g.expand(cur)
        cur = self.dense(self.dense(cur, "dense_2"), "dense_3", bias=False)     # build_dense_out
        g.expand(self.output(cur))

    def dense(self, cur: Tensor, name: str, bias: bool = True) -> Tensor:
        """A matmul and its bias, where the file has them."""
        weight, b = self.weight(f"{name}.weight"), self.weight(f"{name}.bias") if bias else None
        if weight is None:
            return cur
        cur = self.graph.mul_mat(weight, cur)
        return cur if b is None else self.graph.add(cur, b)


__all__ = ["AttnInput", "CacheView", "Llm", "Routing", "StateView"]
