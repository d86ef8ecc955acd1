"""Building blocks of a model's graph, named as in llama.cpp's src/llama-graph.cpp (as modelled, see
autolayers.builds). An architecture (rows.py, models/) calls these in llama.cpp's order. The order
in which tensors are created and expanded is part of the result, because the allocator sees it."""

from __future__ import annotations

from ..errors import ModelError
from ..ggml.tensor import Graph, Tensor
from ..model.hparams import Hparams
from . import llm_before
from .inputs import AttnInput, CacheView, StateView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Literal

    from ..builds import Rules
    from ..ggml.scheduler import SchedulerBackend
    from ..ggml.tensor import Buffer

    Norm = Literal["rms", "layer", "group"]
    Activation = Literal[
        "silu",
        "gelu",
        "relu",
        "relu_sqr",
        "xielu",
        "swiglu",
        "geglu",
        "reglu",
        "swiglu_oai",
        "situ",
    ]
    Gate = Literal["par", "seq"]

Qkv = tuple[Tensor, Tensor, Tensor]

# a multiple of these, in builds with Rules.pads_uncached
_PADDED = 256  # keys of attention without a cache
SPLIT_GLU = {"silu": "SWIGLU", "gelu": "GEGLU", "relu": "REGLU"}  # gate and up in one op


class Llm:
    """llm_graph_context: the state of one graph under construction, and its helpers."""

    def __init__(
        self,
        hparams: Hparams,
        cparams: Any,
        *,
        n_tokens: int,
        n_seqs: int,
        n_outputs: int,
        fused_ops: dict[str, bool],
        lookup: Callable[[str], Tensor | None],
        backends: Sequence[SchedulerBackend],
        dev_layer: Sequence[int],
        full_offload: bool,
    ) -> None:
        """`cparams` is a memory.context.Context; `lookup` returns a weight by its name, None if the
        file lacks it; `dev_layer` is the backend of each layer."""
        self.rules: Rules = cparams.rules
        self.graph = Graph(self.rules.clamp_copies)
        self.hparams = hparams
        self.cparams = cparams
        self.row = hparams.architecture
        self.n_tokens = n_tokens
        self.n_seqs = n_seqs
        # graph_reserve has made the tokens a multiple of the sequences
        self.n_seq_tokens = n_tokens // n_seqs
        self.n_outputs = n_outputs
        self.fused_ops = fused_ops  # the fused ops that llama.cpp would build with
        self.flash_attn = fused_ops["flash_attn"]
        self.n_layer: int = hparams.n_layer
        self.chosen_layers: Sequence[int] | None = None  # those to build, None: all
        self.skips = False  # a builder left the others out
        self.n_embd: int = hparams.n_embd
        self.n_head: int = hparams.n_head(0)
        self.n_head_kv: int = hparams.n_head_kv(0)
        self.head_k: int = hparams.head_k(0)
        self.head_v: int = hparams.head_v(0)
        self.n_expert: int = hparams.n_expert
        self.n_expert_used: int = hparams.n_expert_used(0)
        self.caches: dict[str, CacheView] = {}  # filled before the graph is built
        self.states: dict[str, StateView] = {}
        self.backends = backends
        self.dev_layer = dev_layer
        self.slots: Mapping[int, int] = {}  # of the expert cache, by layer
        self.host_buffer: Buffer | None = None  # that of plain RAM
        # graph_get_cb's condition: a small batch, or every layer on a device
        self._pins = n_tokens < 32 or full_offload
        self._lookup = lookup
        # (kind, node, layer) for llama.cpp's auto decisions
        self.fused_nodes: list[tuple[str, Tensor, int]] = []
        self.attn_soft_cap = False  # attention logits are capped
        self.t_embd: Tensor | None = None
        self.outputs: list[Tensor] = []
        self.inp_tokens: Tensor | None = None
        # t_inp_embd: with the rows of deepstack models
        self.inp_embd: Tensor | None = None
        self.attn_temp: Tensor | None = None  # inp_attn_scale, if the model has it
        self.pos: Tensor | None = None  # inp_pos, if rope or learned positions need it
        self.inp: AttnInput | None = None  # of attention to the model's own caches

    @property
    def layers(self) -> Sequence[int]:
        """Return the layers to build: all, or `chosen_layers` for a builder that runs each once."""
        # remembered, because a caller must know whether the graph that it measures is the whole one
        self.skips = self.chosen_layers is not None
        return range(self.n_layer) if self.chosen_layers is None else self.chosen_layers

    # weights

    def weight(self, name: str) -> Tensor | None:
        """Return a weight by its full name, None if the file lacks it."""
        return self._lookup(name)

    def layer_weight(self, il: int, name: str, suffix: str = "weight") -> Tensor | None:
        """Return blk.<il>.<name>.<suffix>, None if the file lacks it; a few tensors carry no suffix
        at all."""
        # such as blk.N.ssm_a, which llama.cpp's loader asks for without ".weight"
        tensor = self._lookup(f"blk.{il}.{name}.{suffix}")
        if tensor is None and suffix == "weight":
            return self._lookup(f"blk.{il}.{name}")
        return tensor

    def need(self, name: str) -> Tensor:
        """Return a weight that every file of the architecture has. Raises ModelError."""
        tensor = self._lookup(name)
        if tensor is None:
            raise ModelError(f"a {self.row.name} model without {name}: llama.cpp does not load it")
        return tensor

    def need_layer(self, il: int, name: str, suffix: str = "weight") -> Tensor:
        """Return a weight that every such layer has. Raises ModelError."""
        tensor = self.layer_weight(il, name, suffix)
        return self.need(f"blk.{il}.{name}.{suffix}") if tensor is None else tensor

    def rename_weights(self, rename: Callable[[str], str]) -> None:
        """Look weights up under other names from now on."""
        lookup = self._lookup
        self._lookup = lambda name: lookup(rename(name))

    def share_blocks(self, physical: Callable[[int], int], scales: bool = True) -> None:
        """Let layer il read the weights of block physical(il); NVFP4 scales stay the layer's own
        unless `scales`."""

        def rename(name: str) -> str:
            if name.startswith("blk."):
                if scales or not name.endswith(".scale"):
                    # "blk.12.attn_q.weight" -> "12", "attn_q.weight"
                    _, il, rest = name.split(".", 2)
                    name = f"blk.{physical(int(il))}.{rest}"
            # a layer's copy of a shared tensor (rope factors): name@layer
            elif "@" in name:
                base, il = name.split("@")
                name = f"{base}@{physical(int(il))}"
            return name

        self.rename_weights(rename)

    def rope_factors(self, il: int) -> Tensor | None:
        """Return llama 3's frequencies, or LongRoPE's by the context's length
        (get_rope_factors)."""
        freqs = self._lookup(f"rope_freqs.weight@{il}")
        if freqs is not None:
            return freqs
        # by the context of one sequence, so -np can switch the factors (and with them nothing of
        # the sizes)
        kind = "long" if self.cparams.n_ctx_seq > self.hparams.n_ctx_orig_yarn else "short"
        return self._lookup(f"rope_factors_{kind}.weight@{il}")

    # pins and outputs

    def pin(self, tensor: Tensor, il: int) -> None:
        """Pin a node to its layer's backend: those that llama.cpp names "norm" or "l_last"
        (graph_get_cb)."""
        # otherwise the scheduler may leave a norm on the previous layer's backend, where it costs a
        # copy more between devices (the comment in graph_get_cb)
        if self._pins and il >= 0:
            b = self.dev_layer[il]
            if self.backends[b].supports_op(tensor):
                tensor.pinned = b

    def output(self, tensor: Tensor) -> Tensor:
        """Mark a tensor that is read after the graph has run (ggml_set_output)."""
        self.outputs.append(tensor)
        return tensor

    def release(self) -> None:
        """Free the graph; nothing of it is usable afterwards."""
        # views of the caches hold the graph, and the graph holds them
        self.caches, self.states = {}, {}
        self.graph.release()

    # inputs

    def build_inp_embd(self, scale: bool = False) -> Tensor:
        """Return the embeddings of tokens, or what replaces them: [n_embd, n_tokens]; `scale`: a
        constant factor of the tokens' embeddings."""
        g, hp, n = self.graph, self.hparams, self.n_tokens
        cur = self.inp_embd = self._looked_up(hp.n_embd_inp)
        # deepstack models append image features to a row; the layers read its first n_embd elements
        if hp.n_embd_inp != self.n_embd:
            cur = g.view(cur, (self.n_embd, n), (cur.nb[1],))
        # whether each row has its factor, because embeddings between the tokens have none
        constant = hp.f_embedding_scale != 0.0 and hp.n_deepstack_layers > 0
        by_row = self.rules.mixed_input and (scale or constant)
        stacked = by_row and hp.n_deepstack_layers > 0
        if hp.f_embedding_scale != 0.0 and not stacked:
            cur = g.scale(self.contiguous(cur))
        if by_row:
            factors = g.input("inp_scale_rows", "f32", 1, n)
            cur = g.mul(self.contiguous(cur), factors)
        # #18599: before the first layer's other inputs
        if self.rules.embeddings_at_once:
            g.expand(cur)
        return g.scale(cur) if scale and not by_row else cur

    def contiguous(self, t: Tensor) -> Tensor:
        """Return the tensor, or a copy of it without gaps."""
        return t if t.contiguous() else self.graph.cont(t)

    def _looked_up(self, n_embd_inp: int) -> Tensor:
        """Return the rows of the tokens, with what takes their place in a batch of embeddings."""
        g, n, table = self.graph, self.n_tokens, self.need("token_embd.weight")
        tokens = self.inp_tokens = g.input("inp_tokens", "i32", n)
        # llama.cpp builds both inputs (tokens and embeddings), whichever the batch has
        embd = g.input("inp_embd", "f32", n_embd_inp, n) if self.rules.embeddings_input else None
        # both alternatives are built and only one is computed: the allocator must place both
        rows = [g.get_rows(table, tokens)]
        # a third alternative, with inputs of its own: branches of a select share no tensor
        if self._is_mixed:
            rows.append(g.get_rows(table, g.input("inp_mixed_tokens", "i32", n)))
        if self.rules.embeddings_first:
            self.expand_all(*rows)
        if n_embd_inp != self.n_embd:
            rows = [g.pad(row, n_embd_inp - self.n_embd) for row in rows]
        cur = rows[0]
        if embd is not None:
            g.expand(cur)  # ggml_build_forward_select visits all alternatives
            g.expand(embd)
        if self._is_mixed:
            slots = g.input("inp_mixed_slots", "i64", n)
            copy = g.dup(g.input("inp_mixed_embd", "f32", n_embd_inp, n))
            g.expand(g.set_rows(copy, rows[1], slots))
        return cur

    @property
    def _is_mixed(self) -> bool:
        """Return whether a batch may hold tokens and embeddings."""
        if not self.rules.mixed_input or self.cparams.kind != "default":
            return False
        return bool(self.row.mixed_batch)

    def build_mtp_inputs(self, il: int, streams: int = 1) -> tuple[Tensor, Tensor]:
        """Return what an MTP block reads: the next token's embedding, and the last hidden state of
        all residual streams."""
        g, n = self.graph, self.n_tokens
        tokens = g.input("inp_tokens", "i32", n)
        state = g.input("mtp_h_input", "f32", self.n_embd * streams, n)
        # some files have an embedding of the MTP block's own
        table = self.layer_weight(il, "nextn.embed_tokens")
        return g.get_rows(self.need("token_embd.weight") if table is None else table, tokens), state

    @property
    def crops_early(self) -> bool:
        """crop_before_nextn: rows are picked in the last layer, because no MTP block reads the
        others."""
        return self.rules.rows_before_nextn and not self.cparams.load_mtp

    def build_inp_pos(self) -> None:
        # M-RoPE has four positions for each token
        self.pos = self.graph.input("inp_pos", "i32", self.n_tokens * self.hparams.n_pos_per_embd)

    def build_inp_out_ids(self) -> None:
        self.out_ids = self.graph.input("out_ids", "i32", self.n_outputs)

    def build_inp_attn_scale(self) -> Tensor:
        return self.graph.input("inp_attn_scale", "f32", 1, 1, self.n_tokens)

    def _mask(self, cache: CacheView, type_: str, by_rows: bool = False) -> Tensor:
        n_stream = self.n_seqs if by_rows or not self.cparams.kv_unified else 1
        return self.mask_input(
            "attn_inp_kq_mask", type_, cache.n_kv, self.n_tokens // n_stream, 1, n_stream
        )

    def mask_input(self, name: str, type_: str, *ne: int) -> Tensor:
        """Return a mask in the type that attention reads; `type_`: that type, if not decided by
        attention."""
        # flash attention reads a half precision mask, softmax a full one
        type_ = type_ or ("f16" if self.flash_attn else "f32")
        if not self.rules.f16_mask:
            return llm_before.mask_input(self.graph, self.rules, name, type_, *ne)
        return self.graph.input(name, type_, *ne)

    def attn_input(
        self,
        cache: CacheView,
        with_v: bool = True,
        rotations: bool = True,
        mask_type: str = "",
        by_rows: bool = True,
    ) -> AttnInput:
        """Return the inputs of attention to `cache`; MLA has none for V. `by_rows`: each sequence
        may have its own rows of a unified cache."""
        g, n = self.graph, self.n_tokens
        k_idxs = v_idxs = None
        if self.rules.set_rows:
            k_idxs = g.input("attn_inp_k_idxs", "i64", n)
            # a transposed cache scatters single elements of V, so there is an index for each of
            # them
            n_v = n * cache.n_embd_v_gqa_max if cache.v_trans else n
            v_idxs = g.input("attn_inp_v_idxs", "i64", n_v) if with_v else None
        # latent attention and indexers, which have no V, see all rows
        by_rows = (
            by_rows
            and with_v
            and self.flash_attn
            and self.cparams.kv_unified
            and self.rules.attends_by_rows
            and self.fused_ops.get("kv_rows", False)
        )
        mask = self._mask(cache, mask_type, by_rows)
        rows = g.input("attn_inp_kv_rows", "i32", cache.n_kv, self.n_seqs) if by_rows else None
        k_rot = self.rotation("attn_inp_k_rot", cache.k_rot) if rotations else None
        v_rot = self.rotation("attn_inp_v_rot", cache.v_rot) if rotations and with_v else None
        return AttnInput(cache, mask, k_idxs, v_idxs, k_rot, v_rot, rows=rows)

    def rotation(self, name: str, side: int) -> Tensor | None:
        """Return a Hadamard matrix, which spreads outliers before a quantised cache rounds them
        (build_input_k_rot); None where `side` is 0."""
        if not side:
            return None
        if not self.rules.rotates_alone:
            return self.graph.input(name, "f32", side, side)
        matrix = self.graph.new("f32", side, side)
        # the product computes it: it takes no space
        matrix.buffer = self.backends[-1].buffer
        return matrix

    def build_attn_inp_kv(self) -> AttnInput:
        return self.attn_input(self.caches["attn"])

    def build_attn_inp_k(self) -> AttnInput:
        """Return the input of MLA's attention: K only; llama.cpp builds no rotation here."""
        return self.attn_input(self.caches["attn"], with_v=False, rotations=False)

    def build_attn_inp_kv_iswa(self) -> AttnInput:
        if not self.rules.window_cache:
            base = self.attn_input(self.caches["attn"])
            # those builds had one cache for all layers, and told the window by a second mask alone
            base.swa = AttnInput(base.cache, self._mask(self.caches["attn"], ""))
            return base
        rotations = "recurrent" not in self.states  # build_inp_mem_hybrid_iswa builds none
        base = self.attn_input(self.caches["attn"], rotations=rotations)
        base.swa = self.attn_input(
            self.caches["swa"], rotations=rotations and self.rules.rotates_apart
        )
        if not self.rules.rotates_apart:
            # one input for both: two would be two allocations
            base.swa.k_rot, base.swa.v_rot = base.k_rot, base.v_rot
        return base

    def build_attn_inp_k_iswa(self) -> AttnInput:
        base = self.attn_input(self.caches["attn"], with_v=False)
        base.swa = self.attn_input(self.caches["swa"], with_v=False)
        return base

    def build_attn_inp_no_cache(self) -> AttnInput:
        n = self.n_tokens
        # the mask closes the padding
        keys = -(-n // _PADDED) * _PADDED if self.rules.pads_uncached else n
        inp = AttnInput(None, self.mask_input("self_kq_mask", "", keys, n))
        if self.hparams.swa_type != "none":
            inp.swa = AttnInput(None, self.mask_input("self_kq_mask_swa", "", keys, n))
            inp.swa.padded = self.rules.pads_uncached
        inp.padded = self.rules.pads_uncached
        return inp

    def build_attn_inp(self) -> AttnInput:
        """Return the inputs for the model's caches: sliding window or not, only keys (MLA), or no
        cache."""
        # embedding models and encoders attend within the batch
        if "attn" not in self.caches or (self.row.memory == "none" and "swa" not in self.caches):
            return self.build_attn_inp_no_cache()
        # a model with windows in a build that kept them all in one cache
        windows = "swa" in self.caches or (
            self.hparams.swa_type != "none" and not self.rules.window_cache
        )
        if self.hparams.is_mla and self.rules.mla_keys_only:
            return self.build_attn_inp_k_iswa() if windows else self.build_attn_inp_k()
        return self.build_attn_inp_kv_iswa() if windows else self.build_attn_inp_kv()

    # small blocks

    def build_norm(
        self,
        cur: Tensor,
        weight: Tensor | None,
        bias: Tensor | None = None,
        kind: Norm = "rms",
        il: int = -1,
    ) -> Tensor:
        """Build a norm, its weight and its bias; pinned to layer `il` if that is given."""
        g = self.graph
        if kind == "rms":
            cur = g.rms_norm(cur)
        elif kind == "layer":
            cur = g.norm(cur)
        else:
            # ggml_group_norm takes groups of dimension 2
            cur = g.reshape(cur, cur.ne[0], 1, cur.ne[1])
            cur = g.group_norm(cur)
            cur = g.reshape(cur, cur.ne[0], cur.ne[2])
        # llama.cpp calls cb(cur, "norm", il) only where something follows the norm
        if weight is not None or bias is not None:
            self.pin(cur, il)
        if weight is not None:
            cur = g.mul(cur, weight)
        if bias is not None:
            cur = g.add(cur, bias)
        return cur

    def build_lora_mm(self, weight: Tensor, cur: Tensor, scale: Tensor | None = None) -> Tensor:
        """Build a matmul, and the scale of an NVFP4 weight."""
        result = self.graph.mul_mat(weight, cur)
        return result if scale is None else self.graph.mul(result, scale)

    def rope(self, t: Tensor, factors: Tensor | None = None) -> Tensor:
        """Rotate by the tokens' positions."""
        assert self.pos is not None
        return self.graph.rope(t, self.pos, factors)

    def rope_end(
        self,
        heads: Tensor,
        n_rot: int,
        factors: Tensor | None = None,
        *,
        pos: Tensor | None = None,
        back: bool = False,
        first: bool = False,
    ) -> Tensor:
        """Rotate the last `n_rot` elements of heads [head, n_head, n_tokens]
        (ggml_rope_set_offset), by the tokens' positions unless others are given; `first`: where
        older builds have these."""
        g, at = self.graph, pos or self.pos
        assert at is not None

        def rotated(t: Tensor) -> Tensor:
            return g.rope_back(t, at) if back else g.rope(t, at, factors)

        if not self.rules.ropes_end:
            return llm_before.rope_end(g, heads, n_rot, rotated, first)
        return rotated(heads)

    def build_lora_mm_id(
        self,
        weight: Tensor,
        cur: Tensor,
        ids: Tensor,
        scale: Tensor | None = None,
        param: object = None,
        slots: Tensor | None = None,
        il: int = 0,
    ) -> Tensor:
        """Build a matmul by experts, and their NVFP4 scales; with `slots` by those that the cache
        of layer `il` has."""
        g = self.graph
        # read where the file's experts are
        if slots is None:
            result = g.mul_mat_id(weight, cur, ids, param)
        else:
            # a bank has one expert more than the cache has slots (moe_cache.bank_bytes)
            bank = Tensor("NONE", weight.type, (weight.ne[0], weight.ne[1], self.slots[il] + 1, 1))
            bank.name, bank.weight, bank.buffer = (
                weight.name,
                True,
                self.backends[self.dev_layer[il]].buffer,
            )
            # the product sees the slots without it
            cached = g.view(bank, (*weight.ne[:2], self.slots[il]), bank.nb[1:3])
            cached.name, cached.weight = weight.name, True
            result = g.mul_mat_id(cached, cur, slots, param)
        if scale is not None:
            # one scale per expert, gathered by the ids of the chosen ones for each token
            n_expert = scale.ne[0]
            s = g.reshape(scale, 1, n_expert, 1)
            s = g.repeat(s, 1, n_expert, cur.ne[2], 1)
            result = g.mul(result, g.get_rows(s, ids))
        return result

    def linear(self, il: int, name: str, cur: Tensor, scale: bool = False) -> Tensor:
        """Apply blk.<il>.<name> (build_lora_mm); `scale`: its NVFP4 scale is applied, if
        present."""
        weight = self.need_layer(il, name)
        return self.build_lora_mm(
            weight, cur, self.layer_weight(il, name, "scale") if scale else None
        )

    def rms_norm(self, il: int, name: str, cur: Tensor) -> Tensor:
        """Norm by blk.<il>.<name>, if present (build_norm)."""
        return self.build_norm(cur, self.layer_weight(il, name), None, "rms", il)

    def norm(self, il: int, name: str, cur: Tensor, kind: Norm, pinned: bool = True) -> Tensor:
        """Norm by blk.<il>.<name> and its bias, if present."""
        weight, bias = self.layer_weight(il, name), self.layer_weight(il, name, "bias")
        return self.build_norm(cur, weight, bias, kind, il if pinned else -1)

    def output_norm(self, cur: Tensor, il: int = -1) -> Tensor:
        return self.build_norm(cur, self.weight("output_norm.weight"), None, "rms", il)

    def hadamard(self, cur: Tensor, rot: Tensor | None) -> Tensor:
        """Rotate rows of `cur` in parts of rot.ne[0] (llama_mul_mat_hadamard), if there is a
        matrix."""
        if rot is None:
            return cur
        g, n = self.graph, rot.ne[0]
        # ggml_reshape wants contiguous rows; a view (of a fused QKV) is copied first
        if cur.contiguous():
            flat = g.reshape(cur, n, cur.nelements // n)
        else:
            if not self.rules.rotates_views:
                llm_before.refuse_views(self.rules)
            flat = g.cont(cur, n, cur.nelements // n)
        return g.reshape(g.mul_mat(rot, flat, "hadamard"), *cur.ne)

    def build_qkv(
        self,
        cur: Tensor,
        il: int,
        n_head: int = 0,
        n_head_kv: int = 0,
        head_k: int = 0,
        head_v: int = 0,
        *,
        reshape: bool = True,
        head_q: int = 0,
        scales: bool = True,
        plain: bool = False,
        roped: bool = True,
    ) -> Qkv:
        """Return Q, K and V by one fused projection or three, with biases and clamp; by heads if
        `reshape`.

        Sizes are the layer's unless given. `scales`: the NVFP4 scale of a fused projection is
        applied; `plain`: three projections have neither scales nor biases; `roped`: Q and K will
        be.
        """
        g, hp, n = self.graph, self.hparams, self.n_tokens
        n_head = n_head or hp.n_head(il)
        n_head_kv = n_head_kv or hp.n_head_kv(il)
        head_k = head_k or hp.head_k(il)
        head_v = head_v or hp.head_v(il)
        head_q = head_q or head_k
        # dbrx, mpt, olmo: clamp_kqv bounds the projections
        clamp = reshape and hp.f_clamp_kqv > 0.0
        # a file has the fused matrix or the three: converters differ
        if self.layer_weight(il, "attn_qkv") is not None:
            qkv = self._fused_qkv(cur, il, scales, clamp)
            # columns of the fused matrix: all heads of Q, then of K, then of V
            at_k = head_q * n_head
            at_v = at_k + head_k * n_head_kv
            parts = (head_q, n_head, 0), (head_k, n_head_kv, at_k), (head_v, n_head_kv, at_v)
            return self._by_heads(qkv, parts, roped) if reshape else self._flat(qkv, parts)
        q = self._projected("attn_q", cur, il, plain, clamp)
        k = self._projected("attn_k", cur, il, plain, clamp)
        v = self._projected("attn_v", cur, il, plain, clamp)
        if reshape:
            q = g.reshape(q, head_q, n_head, n)
            k = g.reshape(k, head_k, n_head_kv, n)
            v = g.reshape(v, head_v, n_head_kv, n)
        return q, k, v

    def _projected(self, name: str, cur: Tensor, il: int, plain: bool, clamp: bool) -> Tensor:
        """Return Q, K or V by a projection of its own."""
        t = self.linear(il, name, cur, scale=not plain)
        bias = None if plain else self.layer_weight(il, name, "bias")
        if bias is not None:
            t = self.graph.add(t, bias)
        return self.graph.clamp(t) if clamp else t

    def _by_heads(self, qkv: Tensor, parts: tuple[tuple[int, int, int], ...], roped: bool) -> Qkv:
        """Return Q, K and V of a fused projection as views; `parts`: (head's size, heads, first
        element)."""
        g, n, size, row = self.graph, self.n_tokens, qkv.nb[0], qkv.nb[1]
        # older builds copy V, some Q and K too: each copy is a buffer of its own
        if not self.rules.views_v:
            return llm_before.heads_of(g, qkv, parts, self.rules.views_qk and roped)
        q, k, v = (
            g.view(qkv, (head, heads, n), (size * head, row), size * at)
            for head, heads, at in parts
        )
        return q, k, v

    def _flat(self, qkv: Tensor, parts: tuple[tuple[int, int, int], ...]) -> Qkv:
        """Return Q, K and V of a fused projection as copies of whole rows, without heads."""
        g, n, size, row = self.graph, self.n_tokens, qkv.nb[0], qkv.nb[1]
        # a part's rows have the other parts between them: what reads them as rows wants copies
        views = [g.view(qkv, (head * heads, n), (row,), size * at) for head, heads, at in parts]
        q, k, v = map(g.cont, views)
        return q, k, v

    def _fused_qkv(self, cur: Tensor, il: int, scales: bool, clamp: bool) -> Tensor:
        """Return the fused projection with its bias, or with the three of Q, K and V."""
        g = self.graph
        # a file may have one matrix and three biases
        qkv = self.linear(il, "attn_qkv", cur, scales)
        bias = self.layer_weight(il, "attn_qkv", "bias")
        if bias is None:
            # the biases of Q, K and V one after the other; None if one is missing
            q, k, v = (self.layer_weight(il, f"attn_{x}", "bias") for x in "qkv")
            if q is None or k is None or v is None:
                bias = None
            else:
                # from the left as in build_qkv: ggml_concat takes two
                bias = g.concat(g.concat(q, k, 0), v, 0)
        if bias is not None:
            qkv = g.add(qkv, bias)
        return g.clamp(qkv) if clamp else qkv

    def add_up(self, parts: list[Tensor]) -> Tensor:
        """Return the sum of one or more tensors, from the left."""
        total = parts[0]
        for part in parts[1:]:
            total = self.graph.add(total, part)
        return total

    def concat_all(self, parts: list[Tensor], dim: int) -> Tensor:
        """Join one or more tensors, one after the other in dimension `dim`."""
        joined = parts[0]
        for part in parts[1:]:
            joined = self.graph.concat(joined, part, dim)
        return joined

    # feed-forward

    def swiglu_limit(self, which: Literal["exp", "shexp"], il: int) -> float:
        """Return the bound of a layer's SwiGLU (swiglu_clamp_exp or swiglu_clamp_shexp), 0 without
        one."""
        kind = self.row.swiglu_clamp
        if not kind or (kind == "experts" and which == "shexp"):
            return 0.0
        # dflash has this row too, but only its DeepSeek-V4 stages have streams and the bound
        if kind == "fused" and not self.hparams.dsv4_hc_mult:
            return 0.0
        # one bound for both, where the file names one alone
        key = f"swiglu_clamp_{which}"
        if kind == "fused" and self.hparams.get(key) is None:
            key = "swiglu_clamp_exp"
        return float(self.hparams.number_at(key, il, 0.0))

    def build_ffn(
        self,
        cur: Tensor,
        il: int,
        act: Activation = "silu",
        gate: Gate | None = "par",
        *,
        up: str = "ffn_up",
        gate_name: str = "ffn_gate",
        down: str | None = "ffn_down",
        act_scales: Tensor | None = None,
        scales: bool = True,
        biases: bool = True,
    ) -> Tensor:
        """Build a feed-forward network over blk.<il>.<names>; a missing tensor or name is a missing
        step.

        `gate`: the gate reads the input (par), `up`'s result (seq), or there is none. `biases` and
        `scales` (NVFP4): whether the architecture applies them here, if present.
        """
        g = self.graph
        widened = self._ffn_linear(il, up, cur, biases, scales)
        tmp = cur if widened is None else widened
        gated = None
        if gate is not None:
            # seq: the gate reads what `up` made of the input
            gated = self._ffn_linear(il, gate_name, tmp if gate == "seq" else cur, biases, scales)
        # without a gate the activation is of `up` itself
        cur = tmp if gated is None else gated
        parallel = gated is not None and gate == "par"
        cur, parallel = self._activate(
            cur, tmp, act, parallel, self.swiglu_limit("shexp", il), act_scales
        )
        # expanded early, so that the GPU backends find the gate, the up projection and the GLU in a
        # row and fuse them
        if self.rules.expands_gates:
            g.expand(cur)
        if parallel:
            cur = g.mul(cur, tmp)
        last = self._ffn_linear(il, down, cur, biases, scales) if down is not None else None
        return cur if last is None else last

    def _ffn_linear(
        self, il: int, name: str, x: Tensor, biases: bool, scales: bool
    ) -> Tensor | None:
        """Return `x` multiplied with blk.<il>.<name>, with bias and scale; None without that
        tensor."""
        g, weight = self.graph, self.layer_weight(il, name)
        if weight is None:
            return None
        x = g.mul_mat(weight, x)
        bias = self.layer_weight(il, name, "bias") if biases else None
        scale = self.layer_weight(il, name, "scale") if scales else None
        if bias is not None:
            x = g.add(x, bias)
        return x if scale is None else g.mul(x, scale)

    def _activate(
        self,
        cur: Tensor,
        tmp: Tensor,
        act: Activation,
        parallel: bool,
        limit: float,
        act_scales: Tensor | None,
    ) -> tuple[Tensor, bool]:
        """Return the activation, and whether gate and up still have to be multiplied."""
        g = self.graph
        # llama.cpp's eps
        if act == "silu" and parallel and limit > 1e-6:
            # swiGLU of bounded values (swiglu_limit)
            up = tmp
            if self.row.swiglu_clamp == "fused":
                clamped_swiglu = g.glu("SWIGLU_CLAMP", cur, up)
            else:
                # three ops in builds and architectures without the fused one
                up = g.clamp(up)
                clamped_swiglu = g.mul(g.clamp(g.unary("SILU", cur)), up)
            return clamped_swiglu, False
        if act in SPLIT_GLU:
            # one op instead of activation and product: one buffer less
            if parallel and self.rules.glu_op:
                return g.glu(SPLIT_GLU[act], cur, tmp), False
            cur = g.unary(act.upper(), cur)
            # mpt with AWQ: ffn.act scales
            if act == "gelu" and act_scales is not None:
                cur = g.div(cur, act_scales)
            return cur, parallel
        # gpt-oss: a gate with a bound and an alpha, always one op
        if act == "swiglu_oai":
            return g.glu("SWIGLU_OAI", cur, tmp), False
        return self._activate_one(cur, act), parallel

    def _activate_one(self, cur: Tensor, act: Activation) -> Tensor:
        """Return the activation of one tensor; of a GLU, both of its halves."""
        g = self.graph
        if act == "relu_sqr":
            return g.sqr(g.unary("RELU", cur))
        if act == "xielu":
            return g.unary("XIELU", cur)
        if not self.rules.glu_op:
            return llm_before.split_glu(g, cur, act)
        return g.glu(act.upper(), cur)

    # attention

    def build_attn_mha(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        il: int,
        *,
        kq_b: Tensor | None = None,
        sinks: Tensor | None = None,
        v_mla: Tensor | None = None,
        n_kv_max: int = 0,
        cached: bool = True,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Build softmax attention, [n_embd_head_v * n_head, n_tokens].

        `kq_b` is added to the scores, which excludes flash attention; `n_kv_max` bounds the cells
        that a sparse mask leaves open. `cached`: k and v are from a cache, not from an encoder.
        """
        g, hp = self.graph, self.hparams
        # without flash attention the cache holds V transposed; the strides tell
        v_trans = v.nb[1] > v.nb[2]
        # `rows` has those of each sequence in the one cache
        n_stream = rows.ne[1] if rows is not None else k.ne[3]
        # tokens of one stream: with a cache per sequence they attend only to their own cells
        per = q.ne[2] // n_stream
        q = g.view(q, (q.ne[0], q.ne[1], per, n_stream), (q.nb[1], q.nb[2], q.nb[2] * per))
        # from [head, n_head, tokens] to [head, tokens, n_head], as both kernels read them
        q = g.permute(q, 0, 2, 1, 3)
        k = g.permute(k, 0, 2, 1, 3)
        v = g.permute(v, 0, 2, 1, 3)
        takes = cached or self.rules.flash_any_keys or llm_before.encoder_flash(self.rules, k)
        if self.flash_attn and kq_b is None and takes:
            v = g.transpose(v) if v_trans else v
            cur = g.flash_attn(
                q,
                self._as_f16(k),
                self._as_f16(v),
                mask,
                sinks,
                hp.f_max_alibi_bias > 0.0,
                n_kv_max,
                self.attn_soft_cap,
                rows,
            )
            # -fa auto looks at the device of this very node (llama_context::resolve_fused_ops)
            self.fused_nodes.append(("flash_attn", cur, il))
            if rows is not None:
                self.fused_nodes.append(("kv_rows", cur, il))
            cur = self._of_latent(cur, v_mla, per * n_stream)
        else:
            # ggml_mul_mat needs the summed dimension first
            v = v if v_trans else g.cont(g.transpose(v))
            # build attention without the fused kernel; `v` is transposed
            kq = g.mul_mat(k, q)
            if self.attn_soft_cap:
                # cap * tanh(kq / cap): Gemma 2 and Grok
                kq = g.scale(g.unary("TANH", g.scale(kq)))
            if kq_b is not None:
                kq = g.add(kq, kq_b)
            # f32 scores: cells x tokens x heads, mostly the largest tensor of a graph without
            # flash attention
            kqv = g.mul_mat(v, g.soft_max(kq, mask, sinks))
            if v_mla is not None:
                kqv = g.mul_mat(v_mla, kqv)
            cur = g.permute(kqv, 0, 2, 1, 3)
            cur = g.cont(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
            # -nkvo: everything from the cache to here runs on the CPU
            if not self.cparams.offload_kqv:
                cur.pinned = len(self.backends) - 1
        # kept together with its inputs: without it the next layer's nodes may come in between
        g.expand(cur)
        return cur

    def _as_f16(self, t: Tensor) -> Tensor:
        """Return keys or values as the flash attention of this build reads them."""
        # f32 occurs without a cache, in encoders
        return self.graph.cast(t, "f16") if t.type == "f32" and self.rules.casts_f32_cache else t

    def _of_latent(self, cur: Tensor, v_mla: Tensor | None, n_tokens: int) -> Tensor:
        """Return flash attention's result by token, decompressed by `v_mla`."""
        g = self.graph
        if v_mla is not None and self.rules.mla_heads_at_once:
            # all heads in one product, with the heads as its third dimension
            cur = g.mul_mat(v_mla, g.permute(cur, 0, 2, 1, 3))
            cur = g.cont(g.permute(cur, 0, 2, 1, 3))
        elif v_mla is not None:
            # the kernel's result has the heads before the tokens, so each token is a batch of its
            # own
            cur = g.mul_mat(v_mla, g.reshape(cur, v_mla.ne[0], 1, cur.ne[1], n_tokens))
        return g.reshape(cur, cur.nelements // n_tokens, n_tokens)

    def build_attn(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        il: int,
        *,
        inp: AttnInput | None = None,
        wo: str | None = "attn_output",
        kq_b: Tensor | None = None,
        sinks: Tensor | None = None,
        v_mla: Tensor | None = None,
        mla: bool = False,
        wo_bias: bool = True,
    ) -> Tensor:
        """Store k and v in the cache (if any), attend, project; `inp`: of another cache.

        `mla`: the cache holds K, whose first part is V (llm_graph_input_attn_k).
        """
        g, inp = self.graph, inp or self.inp
        assert inp is not None
        a = inp.at(self.hparams.is_swa(il))
        iswa = inp.swa is not None
        # MLA caches K alone: V is its first part, and is never stored
        cache = a.cache
        mla = mla and self.rules.mla_keys_only
        # of the two inputs with keys alone, the one with windows has another order of expansion
        keys_only = mla and iswa
        # before anything is stored: a quantised cache holds rotated keys and values
        q, k = self.hadamard(q, a.k_rot), k and self.hadamard(k, a.k_rot)
        v = v if v is None or mla else self.hadamard(v, a.v_rot)
        # expanded together so that they are not reordered; the plain cache wants k last, iSWA and
        # no cache v last
        late_k = cache is not None and not iswa and self.rules.keys_last
        if late_k:
            self.expand_all(q, v, k)
        elif keys_only:
            self.expand_all(q, k)
        else:
            self.expand_all(q, k, v)
        if cache is None:
            assert k is not None and v is not None
            keys, values = k, v
            if a.padded:  # to a multiple of tokens; the mask closes it, so its values do not matter
                keys = g.pad(k, 0, 0, -k.ne[2] % _PADDED)
                values = g.pad(v, 0, 0, -v.ne[2] % _PADDED)
                kq_b = kq_b and g.pad(kq_b, -kq_b.ne[0] % _PADDED)
        else:
            keys, values = self.cached(a, k, v, il, mla)
        cur = self.build_attn_mha(
            q,
            keys,
            values,
            a.mask,
            il,
            kq_b=kq_b,
            sinks=sinks,
            v_mla=v_mla,
            cached=cache is not None,
            rows=a.rows,
        )
        # Attention's result without the rotation of the values in the cache; `of_keys`: the values
        # are a part of the keys.
        # a Hadamard matrix is its own inverse up to the scale that it already has
        rot = a.k_rot if keys_only and a.k_rot is not None else a.v_rot
        return self.project(self.hadamard(cur, rot), il, wo, wo_bias)

    def expand_all(self, *tensors: Tensor | None) -> None:
        """Add the given tensors to the graph, in this order."""
        for t in tensors:
            if t is not None:
                self.graph.expand(t)

    def cached(
        self, a: AttnInput, k: Tensor | None, v: Tensor | None, il: int, mla: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Store K and V, if there are new ones; return all keys and values of the layer."""
        g, hp, cache = self.graph, self.hparams, a.cache
        assert cache is not None
        # no new keys where a layer reads another's cache (shared KV layers)
        if k is not None:
            g.expand(cache.cpy_k(k, a.k_idxs, il))
        if v is not None and not mla:
            g.expand(cache.cpy_v(v, a.v_idxs, il))
        keys = cache.get_k(il, hp.head_k(il), hp.n_head_kv(il))
        if mla:
            assert v is not None
            # the latent is at the beginning of each row, the rotated part after it
            return keys, g.view(keys, (v.ne[0], *keys.ne[1:]), keys.nb[1:])
        return keys, cache.get_v(il, hp.head_v(il), hp.n_head_kv(il))

    def project(
        self, cur: Tensor, il: int, wo: str | None = "attn_output", biased: bool = True
    ) -> Tensor:
        """Apply wo, its scale and its bias, if present."""
        if wo is None:
            return cur
        weight, bias = (
            self.layer_weight(il, wo),
            self.layer_weight(il, wo, "bias") if biased else None,
        )
        if weight is not None:
            cur = self.build_lora_mm(weight, cur, self.layer_weight(il, wo, "scale"))
        return cur if bias is None else self.graph.add(cur, bias)

    def gate_heads(self, out: Tensor, gate: Tensor) -> Tensor:
        """Multiply attention's result, [head * n_head, n_tokens], with one gate per head."""
        g, n_head, n = self.graph, gate.ne[0], out.ne[1]
        heads = g.reshape(out, out.ne[0] // n_head, n_head, n)
        return g.reshape(g.mul(heads, g.reshape(gate, 1, n_head, n)), *out.ne[:2])

    def deepstack(self, cur: Tensor, index: int) -> Tensor:
        """Add the image features that a vision model's projector appended to the embeddings."""
        inp = self.inp_embd
        assert inp is not None
        part = self.graph.view(
            inp, (self.n_embd, self.n_tokens), (inp.nb[1],), index * self.n_embd * 4
        )
        return self.graph.add(cur, part)

    def select_outputs(self, il: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return, in the last layer, the rows whose logits are requested (inp_out_ids)."""
        # earlier layers need all rows, because later tokens attend to them
        if il != self.n_layer - 1:
            return tensors
        return tuple(self.graph.get_rows(t, self.out_ids) for t in tensors)

    def finish(self, cur: Tensor, *, head: str | None = "output", bias: bool = False) -> Tensor:
        """Take `cur` as result_norm; then build the head, and mark the outputs that are never freed
        (set_outputs)."""
        # llama.cpp keeps it even without --embedding: an output's memory is never reused
        self.t_embd = self.output(cur)
        if head is not None:
            # output.weight stands for the copy of token_embd in tied models (Weights.__missing__)
            weight = self.need(f"{head}.weight")
            cur = self.build_lora_mm(weight, cur, self.weight(f"{head}.scale"))
            b = self.weight(f"{head}.bias") if bias else None
            if b is not None:
                cur = self.graph.add(cur, b)
        return cur
