"""The plain transformer, described: most architectures are one row of this vocabulary (rows.py).

    "qwen3": Decoder(qk_norm="head")

Every step runs only if the file has its tensors. So a row states what the file does not show:
orders, activations, which tensor has which role. Sources: build_arch_graph of src/models/*.cpp (as
modelled).
"""

from __future__ import annotations

from ..builds import Rule
from ..ggml.tensor import Tensor
from ..model.hparams import Hparams
from ..records import dataclass, replace
from .experts import Routing, build_latent_moe, build_moe_ffn
from .inputs import AttnInput
from .llm import Llm, Qkv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from ..builds import Rule
    from .llm import Activation, Gate, Norm

    Select = Literal["attention", "norm", "late", "last", ""]

    Ropes = Literal["all", "none", "key"] | Callable[[Hparams, int], bool]


@dataclass(frozen=True)
class Decoder:
    """Fields with their meaning; the defaults make llama."""

    # before the layers
    # factor of the embeddings: all, or only those of tokens, in builds that mix them with others
    embed_scale: Literal["", "all", "tokens"] = ""
    # normed right after them (token_embd_norm, if the file has one)
    embed_norm: bool = False
    positions: bool = False  # learned positions are added
    inp_pos: bool = True  # rope or learned positions need the position input

    # attention
    qkv_scales: bool = True  # NVFP4 scales of a fused QKV are applied
    norm: Norm = "rms"  # every norm of the model
    attn_norm: str | None = "attn_norm"
    attn_norm_2: bool = False  # attention reads a norm of its own, if the file has one
    # all, none, key (Hparams.has_rope), or a rule of (hparams, layer)
    rope: Ropes = "all"
    # rope_freqs / LongRoPE factors are used, or where by a rule of (hparams, layer)
    rope_factors: bool | Callable[[Hparams, int], bool] = False
    # Q and K are normed per head before rope (head), before the heads are split (flat), or after
    # rope
    qk_norm: Literal["head", "flat", "after"] | None = None
    qk_norm_kind: Norm | None = None  # kind of that norm if not `norm`
    q_scale: bool = False  # factor of Q after rope
    # position-dependent factor of Q, or of layers without rope; None: if the key is set
    temperature: Literal["unroped"] | bool | None = False
    sinks: bool = False  # attn_sinks go into the softmax
    soft_cap: bool = False  # attention logits are capped
    out_norm: str | None = None  # norm of the attention's result before wo (attn_sub_norm)
    wo: str = "attn_output"
    wo_bias: bool = True  # its bias is added, if present
    # norm of the attention's output before the residual is added
    attn_post_norm: str | None = None
    # the FFN reads the attention's normed input; FFN, residual and attention are then added in this
    # order
    parallel: Literal["fra", "afr", "far"] | None = None

    # feed-forward
    ffn_norm: str | None = "ffn_norm"
    act: Activation = "silu"
    gate: Gate | None = "par"
    ffn_bias: bool = True  # biases of the FFN are added, if present
    # NVFP4 scales are applied in the FFN (attention always does)
    ffn_scales: bool | Rule = False
    ffn_post_norm: str | None = None
    # llama.cpp names the layer for this norm (it matters to the scheduler)
    ffn_post_norm_pinned: bool = False
    moe: Routing | None = None  # in layers that have ffn_gate_inp
    latent: bool = False  # the experts read and write a latent vector (ffn_latent_down and _up)
    # shared expert: added, times a sigmoid, or times silu / x
    shexp: Literal["add", "gated", "div"] | None = None
    # before the other experts, which matters if its gate is a node at once
    shexp_first: bool = False
    # both branches are scaled before they are added; None: if the key is set
    residual_scale: bool | None = False
    residual_first: bool = False  # residual + attention instead of attention + residual
    # image features are added after the first layers (n_deepstack_layers)
    deepstack: bool = False
    ffn_residual_first: bool = False  # ffn_inp + cur instead of cur + ffn_inp

    # after the layers
    head_bias: bool = False  # output.bias is added, if present
    # where the output rows are picked: after the last layer's attention, after its post norm, or
    # nowhere; while an MTP block reads all rows, after the last layer (late) or the last norm
    # (last), which makes the hidden state there an output too
    select: Select = "attention"
    # (rule, where older builds picked them), oldest first
    select_before: tuple[tuple[Rule, Select], ...] = ()
    # the last layer's result is an output if rows are picked early
    keeps_last: bool = False
    final_norm: str | None = "output_norm"
    final_cap: bool | None = False  # logits are capped; None: if the key is set
    logit_scale: bool | None = False  # factor of the logits; None: if the key is set
    head_scale: bool = False  # factor of the hidden state before the head

    def __call__(self, llm: Llm) -> Tensor | None:
        """Build the graph; returns the logits (not yet expanded), None if the model has none."""
        row = self.for_file(llm)
        # nothing reads the other rows then: the last layer works on the output rows alone
        if row.select in ("late", "last") and llm.crops_early:
            row = replace(row, select="attention", keeps_last=row.select == "late")
        elif (
            row.select == "attention"
            and llm.row.mtp
            and llm.rules.rows_before_nextn
            and not llm.crops_early
        ):
            # an MTP block reads all rows
            row = replace(row, select="late" if row.keeps_last else "last")
        return row.build(llm)

    def for_file(self, llm: Llm) -> Decoder:
        """Return this decoder, or a variant of it that the file's keys or tensors require."""
        return self

    def build(self, llm: Llm) -> Tensor | None:
        hp = llm.hparams
        # the oldest rule that the build lacks: where its source picked them
        before = next(
            (select for rule, select in self.select_before if not llm.rules.has(rule)), None
        )
        if before is not None:
            return replace(self, select=before, select_before=()).build(llm)
        cur = self.embedded(llm)
        # inputs are leafs in the order of their creation: build_inp_embd, pos, attention, out_ids
        llm.inp = self.inputs(llm)
        llm.build_inp_out_ids()
        for il in llm.layers:
            # t_layer_inp: what an EAGLE-3 or DFlash draft reads of its target
            if il in llm.cparams.layer_inputs:
                llm.output(cur)
            cur = self.layer(llm, cur, il)
            if self.deepstack and il < hp.n_deepstack_layers:
                cur = llm.deepstack(cur, il + 1)
        return self.head(llm, self.last_rows(llm, cur))

    def embedded(self, llm: Llm) -> Tensor:
        """Return the embeddings as the first layer reads them, after making the positions."""
        g = llm.graph
        llm.attn_soft_cap = self.soft_cap
        cur = llm.build_inp_embd(scale=self.embed_scale == "tokens")
        if self.embed_scale == "all":
            cur = g.scale(cur)
        if self.inp_pos:
            llm.build_inp_pos()
        if self.temperature or (self.temperature is None and llm.hparams.f_attn_temp_scale):
            llm.attn_temp = llm.build_inp_attn_scale()
        # by row, like the tokens' embeddings
        if self.positions:
            table = llm.need("position_embd.weight")
            cur = g.add(cur, g.get_rows(table, llm.pos))  # type: ignore[arg-type]
        if self.embed_norm:
            weight, bias = llm.weight("token_embd_norm.weight"), llm.weight("token_embd_norm.bias")
            cur = llm.build_norm(cur, weight, bias, self.norm)
        return cur

    def last_rows(self, llm: Llm, cur: Tensor) -> Tensor:
        """Return the normed result of the last layer, of the output rows unless a layer picked
        them."""
        g = llm.graph
        if self.select == "late" or (self.keeps_last and llm.rules.rows_before_nextn):
            llm.output(cur)
        if self.select == "late":
            cur = g.get_rows(cur, llm.out_ids)
        if self.final_norm is not None:
            weight, bias = (
                llm.weight(f"{self.final_norm}.{suffix}") for suffix in ("weight", "bias")
            )
            cur = llm.build_norm(cur, weight, bias, self.norm)
        # every row is an output here, and the head sees the picked ones
        return g.get_rows(llm.output(cur), llm.out_ids) if self.select == "last" else cur

    def inputs(self, llm: Llm) -> AttnInput:
        return llm.build_attn_inp()

    def head(self, llm: Llm, cur: Tensor) -> Tensor | None:
        """Return the logits of the normed hidden state."""
        g = llm.graph
        # the embedding is kept before the factor
        if self.head_scale:
            llm.t_embd = llm.output(cur)
            cur = g.scale(cur)
            cur = llm.build_lora_mm(llm.need("output.weight"), cur, llm.weight("output.scale"))
        else:
            cur = llm.finish(cur, bias=self.head_bias)
        if self.logit_scale or (self.logit_scale is None and llm.hparams.f_logit_scale):
            cur = g.scale(cur)
        # cap * tanh(x / cap)
        if self.final_cap or (
            self.final_cap is None and llm.hparams.get("final_logit_softcapping")
        ):
            cur = g.scale(g.unary("TANH", g.scale(cur)))
        return cur

    def mtp(self, llm: Llm) -> Tensor:
        """Return the logits of the block after the last layer as a context of its own (graph_mtp of
        src/models/*.cpp).

        The next token's embedding and the model's last hidden state become one input for one of the
        architecture's own layers. Architectures differ in where the output rows are picked
        (Architecture.mtp).
        """
        picked = llm.row.mtp
        g, il = llm.graph, llm.n_layer
        # the trunk's own choice of rows does not count here
        row = replace(self.for_file(llm), select="attention" if picked == "attention" else "")
        llm.n_layer += 1  # its layer is the last
        embd, state = llm.build_mtp_inputs(il)
        if row.inp_pos:
            llm.build_inp_pos()
        llm.build_inp_out_ids()
        llm.inp = llm.build_attn_inp()
        state = llm.build_norm(state, llm.layer_weight(il, "nextn.hnorm"), None, row.norm, il)
        embd = llm.build_norm(embd, llm.layer_weight(il, "nextn.enorm"), None, row.norm, il)
        cur = llm.linear(il, "nextn.eh_proj", g.concat(embd, state, 0), scale=True)
        cur = row.mtp_layer(llm, cur, il)
        if picked == "layer":
            cur = llm.output(g.get_rows(cur, llm.out_ids))
        cur = llm.build_norm(cur, _mtp_norm_weight(llm, il), None, row.mtp_norm())
        if picked != "layer":
            # the next step of the draft reads this hidden state (h_nextn)
            llm.output(cur)
        if picked == "norm":
            cur = g.get_rows(cur, llm.out_ids)
        cur = _mtp_head(llm, cur, il)
        return g.scale(cur) if row.logit_scale is None and llm.hparams.f_logit_scale else cur

    def mtp_layer(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return self.layer(llm, cur, il)

    def mtp_norm(self) -> Norm:
        """Return the kind of the norm before its head."""
        return self.norm

    def normed(
        self, llm: Llm, cur: Tensor, il: int, name: str | None, pinned: bool = True
    ) -> Tensor:
        """Return `cur` normed by blk.<il>.<name>; unchanged without a name."""
        return cur if name is None else llm.norm(il, name, cur, self.norm, pinned)

    def layer(self, llm: Llm, inp_l: Tensor, il: int) -> Tensor:
        g = llm.graph
        residual = inp_l
        normed = self.normed(llm, inp_l, il, self.attn_norm)
        own = self.attn_norm_2 and llm.layer_weight(il, "attn_norm_2") is not None
        cur = self.normed(llm, inp_l, il, "attn_norm_2") if own else normed
        cur = self.attention(llm, cur, il)
        # the FFN may read `normed` too, which loses the same rows then
        if self.select == "attention":
            cur, residual, normed = llm.select_outputs(il, cur, residual, normed)
        cur = self.normed(llm, cur, il, self.attn_post_norm)
        if self.select == "norm":
            cur, residual = llm.select_outputs(il, cur, residual)
        if self.parallel:
            return self.parallel_sum(llm, normed, cur, residual, il)
        scaled = (
            bool(llm.hparams.f_residual_scale)
            if self.residual_scale is None
            else self.residual_scale
        )
        # Granite, MiniCPM: a factor of each branch
        if scaled:
            cur = g.scale(cur)
        # the first operand decides which memory the sum takes over (in place)
        ffn_inp = g.add(residual, cur) if self.residual_first else g.add(cur, residual)
        cur = self.feed_forward(llm, self.ffn_input(llm, ffn_inp, normed, il), il)
        cur = self.normed(llm, cur, il, self.ffn_post_norm, self.ffn_post_norm_pinned)
        if scaled:
            cur = g.scale(cur)
        return g.add(ffn_inp, cur) if self.ffn_residual_first else g.add(cur, ffn_inp)

    def ffn_input(self, llm: Llm, ffn_inp: Tensor, normed: Tensor, il: int) -> Tensor:
        """Return what the FFN reads of the sum, or of the attention's normed input."""
        return self.normed(llm, ffn_inp, il, self.ffn_norm)

    def parallel_sum(
        self, llm: Llm, normed: Tensor, attention: Tensor, residual: Tensor, il: int
    ) -> Tensor:
        """Return the sum of a layer whose FFN reads what its attention reads, in the order of
        `parallel`."""
        g = llm.graph
        assert self.parallel is not None
        parts = {"f": self.feed_forward(llm, normed, il), "a": attention, "r": residual}
        first, second, third = (parts[letter] for letter in self.parallel)
        return g.add(g.add(first, second), third)

    def attention(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Build attention of the normed input, projected by wo."""
        g = llm.graph
        q, k, v = self.heads(llm, cur, il)
        roped = llm.pos is not None and self.ropes(llm.hparams, il)
        if roped:
            wanted = self.rope_factors
            if callable(wanted):
                wanted = wanted(llm.hparams, il)
            factors = llm.rope_factors(il) if wanted else None
            q, k = llm.rope(q, factors), llm.rope(k, factors)
        if self.qk_norm == "after":
            q, k = self.qk_normed(llm, q, k, il, self.qk_norm_kind or self.norm)
        if self.q_scale:
            q = g.scale(q)
        if llm.attn_temp is not None and not (roped and self.temperature == "unroped"):
            q = g.mul(q, llm.attn_temp)
        sinks = llm.layer_weight(il, "attn_sinks") if self.sinks else None
        out = llm.build_attn(q, k, v, il, wo=None, sinks=sinks)
        return llm.project(self.gated(llm, out, cur, il), il, self.wo, self.wo_bias)

    def gated(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        """Return attention's result as wo reads it; `cur`: the normed input."""
        return self.normed(llm, out, il, self.out_norm)

    def heads(self, llm: Llm, cur: Tensor, il: int) -> Qkv:
        """Return Q, K and V by heads before rope, with the norms that come before it."""
        g, hp, n = llm.graph, llm.hparams, llm.n_tokens
        flat = self.qk_norm == "flat"
        # norms over whole rows come before the rows are split into heads
        q, k, v = llm.build_qkv(
            cur,
            il,
            reshape=not flat,
            scales=self.qkv_scales,
            plain=flat and not llm.rules.qkv_with_biases,
            roped=self.rope != "none" and self.inp_pos,
        )
        if self.qk_norm in ("flat", "head"):
            q, k = self.qk_normed(llm, q, k, il, self.qk_norm_kind or self.norm)
        if flat:
            q = g.reshape(q, hp.head_k(il), hp.n_head(il), n)
            k = g.reshape(k, hp.head_k(il), hp.n_head_kv(il), n)
            v = g.reshape(v, hp.head_v(il), hp.n_head_kv(il), n)
        return q, k, v

    def ropes(self, hp: Hparams, il: int) -> bool:
        """Whether layer `il` rotates Q and K by position."""
        if isinstance(self.rope, str):
            return self.rope == "all" or (self.rope == "key" and hp.has_rope(il))
        return self.rope(hp, il)

    def qk_normed(
        self, llm: Llm, q: Tensor, k: Tensor, il: int, kind: Norm
    ) -> tuple[Tensor, Tensor]:
        """Return Q and K, each normed if the file has its norm."""
        made = []
        for name, t in (("attn_q_norm", q), ("attn_k_norm", k)):
            # a file may have one of the two
            absent = llm.layer_weight(il, name) is None
            made.append(t if absent else llm.norm(il, name, t, kind))
        return made[0], made[1]

    def feed_forward(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        """Build the FFN of the normed input: experts if the layer has a router, and the shared
        expert."""
        g = llm.graph
        if self.moe is None or llm.layer_weight(il, "ffn_gate_inp") is None:
            return llm.build_ffn(
                cur,
                il,
                self.act,
                self.gate,
                scales=llm.rules.says(self.ffn_scales),
                biases=self.ffn_bias,
            )
        # one row serves variants with and without a shared expert
        if self.shexp is None or llm.layer_weight(il, "ffn_up_shexp") is None:
            return self.experts(llm, cur, il, self.moe)
        if self.shexp_first:
            shared = self.shared_expert(llm, cur, il)
            return g.add(self.experts(llm, cur, il, self.moe), shared)
        out = self.experts(llm, cur, il, self.moe)
        gate = None
        if self.shexp in ("gated", "div"):
            # one value for each token
            raw = llm.linear(il, "ffn_gate_inp_shexp", cur)
            gate = (
                g.unary("SIGMOID", raw)
                if self.shexp == "gated"
                else g.div(g.unary("SILU", raw), raw)
            )
        shared = self.shared_expert(llm, cur, il)
        return g.add(out, shared if gate is None else g.mul(shared, gate))

    def shared_expert(self, llm: Llm, cur: Tensor, il: int) -> Tensor:
        return llm.build_ffn(
            cur,
            il,
            self.act,
            self.gate,
            up="ffn_up_shexp",
            gate_name="ffn_gate_shexp",
            down="ffn_down_shexp",
            scales=llm.rules.says(self.ffn_scales),
            biases=self.ffn_bias,
        )

    def experts(self, llm: Llm, cur: Tensor, il: int, routing: Routing) -> Tensor:
        return (build_latent_moe if self.latent else build_moe_ffn)(llm, cur, il, routing)


def _mtp_norm_weight(llm: Llm, il: int) -> Tensor | None:
    """Return the norm before an MTP block's head: its own, or the model's."""
    for name in ("nextn.shared_head_norm", "layer_output_norm"):
        norm = llm.layer_weight(il, name)
        if norm is not None:
            return norm
    return llm.weight("output_norm.weight")


def _mtp_head(llm: Llm, cur: Tensor, il: int) -> Tensor:
    """Return the logits by the MTP block's own head, or by the model's."""
    name = "nextn.shared_head_head"
    head = llm.layer_weight(il, name)
    if head is None:
        return llm.build_lora_mm(llm.need("output.weight"), cur, llm.weight("output.scale"))
    return llm.build_lora_mm(head, cur, llm.layer_weight(il, name, "scale"))


@dataclass(frozen=True)
class Gated(Decoder):
    """A decoder whose attention result is multiplied by a gate before wo."""

    gate_act: Literal["SIGMOID", "SOFTPLUS"] = "SIGMOID"
    # one gate per head instead of one per element, if the file's gate has that width
    gate_heads: bool = False

    def gated(self, llm: Llm, out: Tensor, cur: Tensor, il: int) -> Tensor:
        g = llm.graph
        llm.need_layer(il, self.wo)
        weight = llm.need_layer(il, "attn_gate")
        gate = g.unary(self.gate_act, llm.build_lora_mm(weight, cur))
        by_head = self.gate_heads and weight.ne[1] == llm.hparams.n_head(il)
        return llm.gate_heads(out, gate) if by_head else g.mul(out, gate)


class Encoder(Decoder):
    """A decoder without a cache and without an output matrix: the hidden state is the result."""

    def __call__(self, llm: Llm) -> Tensor | None:
        # no other graph does (EmbeddingGemma's did: windows_without_cache)
        if "swa" not in llm.caches:
            llm.caches = {}
        return super().__call__(llm)

    def head(self, llm: Llm, cur: Tensor) -> Tensor:
        return llm.finish(cur, head=None)
