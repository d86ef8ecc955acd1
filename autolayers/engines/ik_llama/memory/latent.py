"""ik_llama.cpp's graph of latent attention (MLA): build_deepseek2 and
build_deepseek2_layer_attention of src/graphs/build_deepseek2.cpp, 8337e4cd; without sparse
attention."""

from __future__ import annotations

from ....ggml.tensor import Tensor, row_size
from ....records import replace
from .cut import CutBuilder
from .graph import Builder, Experts, some_heads

_MANY = 128  # tokens from which on keys and values are made of the latent cache (pp_opt)
BY_KEYS = Experts(normalised=None, scaled=True, gating="header")
_CELLS = 1024  # and of the cache, where layers are cut (k_pp_opt_min_kv)


def deepseek2(b: Builder) -> Tensor:
    """Mirror build_deepseek2, without sparse attention."""
    g, hp = b.graph, b.hp
    cur = b.embeddings()
    pos, mask = b.positions(), b.mask()
    # pp_opt: prompts need keys and values of every head, few tokens stay in the latent space
    many = b.tokens >= _MANY and b.mla > 1
    for il in range(hp.n_layer):
        # a layer that -sm graph cuts has another attention (build_deepseek2_tp_attention)
        if isinstance(b, CutBuilder) and b.is_cut(il, "attn_output.weight"):
            cur = _cut_layer(b, il, cur, pos, mask, many)
            continue
        start = cur
        cur = _Attention(b, il, pos, mask, many).build(cur)
        if il == hp.n_layer - 1:
            ids = b.output_ids()
            cur, start = g.get_rows(cur, ids), g.get_rows(start, ids)
        inp = g.add(cur, start)
        cur = b.norm(inp, b.of(il, "ffn_norm.weight"))
        if b.of(il, "ffn_gate_inp.weight") is None:
            cur = b.ffn(il, cur)
        else:
            routed = b.moe(il, cur, BY_KEYS)
            cur = g.add(routed, b.ffn(il, cur, suffix="_shexp"))
        cur = g.add(cur, inp)
    return b.head(cur)


def _cut_layer(
    b: CutBuilder, il: int, start: Tensor, pos: Tensor, mask: Tensor, many: bool
) -> Tensor:
    """Mirror build_deepseek2_tp_attention and the layer's experts, each GPU with its heads."""

    def part(device: int, came: Tensor) -> Tensor:
        return _Part(b, il, pos, mask, many, device).build(came)

    cur = b.sum(b.each(il, start, part))
    if il == b.hp.n_layer - 1:
        cur = b.graph.get_rows(cur, b.output_ids())
    norm = b.of(il, "ffn_norm.weight")
    if b.of(il, "ffn_gate_inp.weight") is None:
        return b.ffn(il, cur, norm, add_input=True)
    return b.std_moe(il, cur, norm, replace(BY_KEYS, shared=True))


class _Attention:
    """One layer."""

    def __init__(self, b: Builder, il: int, pos: Tensor, mask: Tensor, many: bool) -> None:
        self.b, self.il, self.pos, self.mask, self.many = b, il, pos, mask, many
        self.head, self.value, _ = b.heads(il)
        self.rope = b.hp.n_rot(il)
        self.nope = self.head - self.rope
        self.rank, self.heads = b.hp.n_lora_kv, b.hp.n_head(il)
        self.k_l = b.caches[il]["k"]

    def build(self, start: Tensor) -> Tensor:
        b, g, il, n = self.b, self.b.graph, self.il, self.b.tokens
        cur = b.norm(start, b.of(il, "attn_norm.weight"))
        # lite models have Q in one step (wq instead of wq_a and wq_b)
        first = b.of(il, "attn_q_a.weight")
        q = g.mul_mat(b.need(il, "attn_q.weight") if first is None else first, cur)
        kv = g.mul_mat(b.need(il, "attn_kv_a_mqa.weight"), cur)
        # both before the norm of Q, so that they read the input one after the other
        g.expand(q)
        g.expand(kv)
        if first is not None:
            q = g.mul_mat(
                b.need(il, "attn_q_b.weight"), b.norm(q, b.of(il, "attn_q_a_norm.weight"))
            )
        # bytes of a head of Q in f32: without rope, then the rotated part
        wide = 4 * self.head
        q_nope = g.view(q, (self.nope, self.heads, n), (wide, wide * self.heads))
        q_rope = g.view(q, (self.rope, self.heads, n), (wide, wide * self.heads), 4 * self.nope)
        k_rope = g.view(kv, (self.rope, 1, n), (kv.nb[1], kv.nb[1]), 4 * self.rank)
        compressed = g.view(kv, (self.rank, n), (kv.nb[1],))
        g.expand(q_rope)
        g.expand(k_rope)
        q_rope, k_rope = g.rope(q_rope, self.pos), g.rope(k_rope, self.pos)
        g.expand(q_rope)
        g.expand(k_rope)
        compressed = b.norm(compressed, b.of(il, "attn_kv_a_norm.weight"))
        if not b.mla:
            # Attend with keys and values of every head (-mla 0).
            b, g, n = self.b, self.b.graph, self.b.tokens
            both = self.nope + self.value
            kv = g.mul_mat(b.need(self.il, "attn_kv_b.weight"), compressed)
            k_nope = g.view(kv, (self.nope, self.heads, n), (4 * both, 4 * both * self.heads))
            # a copy, as values lie between keys in kv's rows
            v = g.cont(
                g.view(
                    kv,
                    (self.value, self.heads, n),
                    (4 * both, 4 * both * self.heads),
                    4 * self.nope,
                )
            )
            v = g.view(v, (self.value * self.heads, n), (4 * self.value * self.heads,))
            q = g.concat(q_nope, q_rope, 0)
            k = g.concat(k_nope, g.repeat(k_rope, *q_rope.ne), 0)
            return b.kv(self.il, k, v, q, self.mask, b.of(self.il, "attn_output.weight"), None)
        trans = self._store(k_rope, compressed)
        # without flash attention the latent space is used at any length
        if self.many and b.flash:
            cur = self._made(q_nope, q_rope)
        else:
            cur = self._latent(q_nope, q_rope, trans)
        g.expand(cur)
        return g.mul_mat(b.need(il, "attn_output.weight"), cur)

    def _store(self, k_rope: Tensor, compressed: Tensor) -> Tensor | None:
        """Write the cache; its transposed part of -mla 1 without flash attention."""
        b, g, n, cells = self.b, self.b.graph, self.b.tokens, self.b.context.n_ctx
        trans = None
        # V is c^KV transposed, in a cache of its own: the matmul by heads wants it so
        if b.mla == 1 and not b.flash:
            v_l = b.caches[self.il]["v"]
            size = row_size(v_l.type, cells)
            view = g.view(v_l, (n, self.rank), (size,), row_size(v_l.type, cells - n))
            g.expand(g.cpy(g.transpose(compressed), view))
            trans = g.view(v_l, (cells, self.rank), (size,))
        # the rotated part first, then the latent: rows of rank + n_rot
        made = g.concat(g.permute(k_rope, 0, 2, 1, 3), compressed, 0)
        row = row_size(self.k_l.type, self.rank + self.rope)
        g.expand(g.cpy(made, g.view(self.k_l, (self.k_l.ne[0], n), (row,), row * (cells - n))))
        return trans

    def _made(self, q_nope: Tensor, q_rope: Tensor) -> Tensor:
        """Return the keys and values of some heads at a time, made of the latent cache."""
        b, g, cells = self.b, self.b.graph, self.b.context.n_ctx
        kv_b, k_l = b.need(self.il, "attn_kv_b.weight"), self.k_l
        nope = g.view(k_l, (self.rank, cells), (k_l.nb[1],), row_size(k_l.type, self.rope))
        whole, limit = kv_b.ne[1] * cells * 4 // (1 << 20), b.settings.attention_mib
        # n_max_head: the most heads whose f32 keys and values fit -amb (attn_max_batch, MiB)
        taken = self.heads
        if 0 < limit < whole:
            taken = next(
                (
                    self.heads // steps
                    for steps in range(2, self.heads)
                    if self.heads % steps == 0 and whole // steps <= limit
                ),
                1,
            )
        rope = g.view(k_l, (self.rope, cells, 1), (k_l.nb[1], k_l.nb[2]))
        # f16 wherever another backend than the CPU is: REPEAT, CONCAT and CPY of
        # quantised caches fail
        # on CUDA ("There is still an issue with one or more of the ops")
        type_ = k_l.type if b.alone else "f16"
        if rope.type != type_:
            rope = g.cast(rope, "f16")
        k_rope = g.repeat(rope, self.rope, cells, taken)
        q = g.permute(g.concat(q_rope, q_nope, 0), 0, 2, 1, 3)
        g.expand(q)
        # rows of wkv_b per head: keys without rope, then values
        each = kv_b.ne[1] // self.heads
        wide = 4 * (self.nope + self.value)
        cur: Tensor | None = None
        # the results of all steps are joined, so each is alive until the next
        for step in range(self.heads // taken):
            part = g.view(
                kv_b, (kv_b.ne[0], each * taken), (kv_b.nb[1],), kv_b.nb[1] * each * taken * step
            )
            kv = g.mul_mat(part, nope)
            v = g.view(kv, (self.value, cells, taken), (wide * taken, wide), 4 * self.nope)
            k_nope = g.view(kv, (self.nope, cells, taken), (wide * taken, wide))
            v, k_nope = g.cast(v, type_), g.cast(k_nope, type_)
            g.expand(k_nope)
            g.expand(v)
            k = g.concat(k_rope, k_nope, 0)
            g.expand(k)
            some = some_heads(g, q, taken * step, taken)
            kqv = self._flash(some, k, v)
            flat = g.reshape(kqv, self.value * taken, b.tokens)
            cur = flat if cur is None else g.concat(cur, flat, 0)
            g.expand(cur)
        assert cur is not None
        return cur

    def _flash(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Tensor(
            "FLASH_ATTN_EXT",
            "f32",
            (v.ne[0], q.ne[2], q.ne[1], q.ne[3]),
            (q, k, v, self.mask),
            param=True,
        )

    def _latent(
        self, q_nope: Tensor, q_rope: Tensor, trans: Tensor | None, cut: bool = False
    ) -> Tensor:
        """Attend with all heads in the latent space."""
        b, g, k_l, cells = self.b, self.b.graph, self.k_l, self.b.context.n_ctx
        k_b, v_b = b.need(self.il, "attn_k_b.weight"), b.need(self.il, "attn_v_b.weight")
        # some files have wk_b as one matrix of all heads
        if k_b.ne[1] != self.rank:
            k_b = g.reshape(k_b, self.nope, self.rank, self.heads)
        q = g.concat(
            g.permute(q_rope, 0, 2, 1, 3), g.mul_mat(k_b, g.permute(q_nope, 0, 2, 1, 3)), 0
        )
        row = row_size(k_l.type, self.rank + self.rope)
        # the whole rows are the keys, their latent part serves as values
        cache = g.view(k_l, (self.rank + self.rope, cells), (row,))
        lora = g.view(k_l, (self.rank, cells), (row,), row_size(k_l.type, self.rope))
        if cut or (b.flash and b.mla in (1, 3)):
            kqv = g.permute(self._flash(q, cache, lora), 0, 2, 1, 3)
        else:
            # -mla 2 and 3 have no transposed cache, so it is transposed for each layer
            if b.mla > 1:
                trans = g.cont(g.transpose(lora))
            assert trans is not None
            kqv = self._by_heads(q, cache, trans)
        if v_b.ne[1] != self.value:
            v_b = g.reshape(v_b, self.rank, self.value, self.heads)
        cur = g.mul_mat(v_b, kqv)
        if b.tokens > 1:
            cur = g.cont(g.permute(cur, 0, 2, 1, 3))
        return g.reshape(cur, self.value * self.heads, b.tokens)

    def _by_heads(self, q: Tensor, cache: Tensor, trans: Tensor) -> Tensor:
        """Attend without flash attention, with as many heads at a time as -amb has room for."""
        b, g = self.b, self.b.graph
        whole, limit = cache.ne[1] * q.ne[1] * q.ne[2] * 4 // (1 << 20), b.settings.attention_mib
        if limit <= 0 or limit >= whole:
            # few tokens: heads and tokens change places around the matmuls
            if self.many:
                return g.mul_mat(trans, g.soft_max(g.mul_mat(cache, q), self.mask))
            kq = g.mul_mat(cache, g.permute(q, 0, 2, 1, 3))
            kq = g.soft_max(g.cont(g.permute(kq, 0, 2, 1, 3)), self.mask)
            return g.permute(g.mul_mat(trans, g.permute(kq, 0, 2, 1, 3)), 0, 2, 1, 3)
        heads = q.ne[2]
        steps = min(-(-whole // limit), heads)
        each = -(-heads // steps)
        cur: Tensor | None = None
        for i in range(0, heads, each):
            count = min(each, heads - i)
            some = some_heads(g, q, i, count)
            part = g.mul_mat(trans, g.soft_max(g.mul_mat(cache, some), self.mask))
            cur = part if cur is None else g.concat(cur, part, 2)
            g.expand(cur)
        assert cur is not None
        return cur


class _Part(_Attention):
    """One layer's heads on a device, with the whole latent cache."""

    def __init__(
        self, b: CutBuilder, il: int, pos: Tensor, mask: Tensor, many: bool, device: int
    ) -> None:
        self.b, self.il, self.pos, self.mask = b, il, pos, mask
        self.head, self.value, _ = b.heads(il)
        self.rope = b.hp.n_rot(il)
        self.nope = self.head - self.rope
        self.rank = b.hp.n_lora_kv
        self.cells, self.device = b.context.n_ctx, device
        self.many = many and self.cells >= _CELLS
        # wo is cut by rows of heads: its width says how many are here
        self.heads = b.need(il, "attn_output.weight").ne[0] // self.value
        type_ = b.settings.type_k or b.context.type_k
        # every GPU has the whole latent cache (replicated_k_l)
        self.k_l = b.on(Tensor("NONE", type_, (self.rank + self.rope, self.cells, 1, 1)), device)

    def build(self, start: Tensor) -> Tensor:
        b, g, il, n = self.b, self.b.graph, self.il, self.b.tokens
        cur = b.norm(start, b.of(il, "attn_norm.weight"))
        first = b.of(il, "attn_q_a.weight")
        q = g.mul_mat(b.need(il, "attn_q.weight") if first is None else first, cur)
        g.expand(q)
        if first is not None:
            normed = b.norm(q, b.of(il, "attn_q_a_norm.weight"))
            q = g.mul_mat(b.need(il, "attn_q_b.weight"), normed)
        wide = 4 * self.head
        q_nope = g.view(q, (self.nope, self.heads, n), (wide, q.nb[1]))
        q_rope = g.view(q, (self.rope, self.heads, n), (wide, q.nb[1]), 4 * self.nope)
        kv = g.mul_mat(b.need(il, "attn_kv_a_mqa.weight"), cur)
        g.expand(kv)
        k_rope = g.view(kv, (self.rope, 1, n), (kv.nb[1], kv.nb[1]), 4 * self.rank)
        compressed = g.view(kv, (self.rank, n), (kv.nb[1],))
        q_rope, k_rope = g.rope(q_rope, self.pos), g.rope(k_rope, self.pos)
        self._store(k_rope, b.norm(compressed, b.of(il, "attn_kv_a_norm.weight")))
        made = self._made(q_nope, q_rope) if self.many else self._latent(q_nope, q_rope, None, True)
        return g.mul_mat(b.need(il, "attn_output.weight"), made)

    def _made(self, q_nope: Tensor, q_rope: Tensor) -> Tensor:
        """Return the keys and values of all its heads at once, made of the latent cache."""
        b, g, k_l, cells = self.b, self.b.graph, self.k_l, self.cells
        v_b, k_b = b.need(self.il, "attn_v_b.weight"), b.need(self.il, "attn_k_b.weight")
        nope = g.view(k_l, (self.rank, cells), (k_l.nb[1],), row_size(k_l.type, self.rope))
        rope = g.view(k_l, (self.rope, cells, 1), (k_l.nb[1], k_l.nb[2]))
        if rope.type != "f16":
            rope = g.cast(rope, "f16")
        k_rope = g.repeat(rope, self.rope, cells, self.heads)

        def of_all(weight: Tensor, width: int) -> Tensor:
            made = g.mul_mat(g.reshape(weight, self.rank, self.heads * width), nope)
            return g.view(made, (width, cells, self.heads), (made.nb[1], 4 * width))

        values = of_all(v_b, self.value)
        # wk_b transposed when the model is loaded (llm_prepare_mla), a weight of this GPU
        turned = Tensor("NONE", k_b.type, (self.rank, self.nope, self.heads, 1))  # wk_b_pp
        assert isinstance(b, CutBuilder)
        keys = of_all(b.on(turned, self.device, weight=True), self.nope)
        v, k_nope = g.cast(values, "f16"), g.cast(keys, "f16")
        g.expand(v)
        g.expand(k_nope)
        k = g.concat(k_rope, k_nope, 0)
        g.expand(k)
        q = g.permute(g.concat(q_rope, q_nope, 0), 0, 2, 1, 3)
        g.expand(q)
        return g.reshape(self._flash(q, k, v), self.value * self.heads, b.tokens)
