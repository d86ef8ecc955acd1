"""ik_llama.cpp's graph of latent attention (MLA): build_deepseek2 and
build_deepseek2_layer_attention of src/graphs/build_deepseek2.cpp, and of layers that -sm graph cuts
build_deepseek2_tp_attention, 8337e4cd; without sparse attention."""

from __future__ import annotations

from ....ggml.tensor import Tensor, row_size
from .cut import CutBuilder
from .graph import Builder, Family, some_heads

_MANY = 128  # tokens from which on keys and values are made of the latent cache (pp_opt)
_CELLS = 1024  # and of the cache, where layers are cut (k_pp_opt_min_kv)


class Latent(Family):
    """Mirror build_deepseek2."""

    def attention(self, b: Builder, il: int, start: Tensor) -> Tensor:
        if isinstance(b, CutBuilder) and b.is_cut(il, "attn_output"):
            # each GPU with its heads
            cur = b.latent_sum(il, start, lambda came: _Attention(b, il).build(came))
            return b.picked(il, cur)[0]
        cur, start = b.picked(il, _Attention(b, il).build(start), start)
        return b.graph.add(cur, start)


class _Attention:
    """One layer, or the heads of it that a device has."""

    def __init__(self, b: Builder, il: int) -> None:
        assert b.latent is not None
        self.b, self.il = b, il
        self.head, self.value = b.latent
        self.rope, self.rank = b.hp.n_rot(il), b.hp.n_lora_kv
        self.nope = self.head - self.rope
        # wo is cut by rows of heads: its width says how many are here
        self.heads = b.need(il, "attn_output").ne[0] // self.value
        self.cut = isinstance(b, CutBuilder) and b.device >= 0
        self.k_l = b.latent_cache(il)
        # pp_opt: prompts need keys and values of every head, few tokens stay in the latent space
        self.many = b.tokens >= _MANY and b.mla > 1 and (not self.cut or b.context.n_ctx >= _CELLS)

    def build(self, start: Tensor) -> Tensor:
        b, g, il, n = self.b, self.b.graph, self.il, self.b.tokens
        cur = b.normed(il, start, "attn_norm")
        # lite models have Q in one step (wq instead of wq_a and wq_b)
        lite = b.of(il, "attn_q_a") is None
        q = b.mul_mat(il, "attn_q" if lite else "attn_q_a", cur)
        kv = b.mul_mat(il, "attn_kv_a_mqa", cur)
        # both before the norm of Q, so that they read the input one after the other
        g.expand(q)
        g.expand(kv)
        if not lite:
            q = b.mul_mat(il, "attn_q_b", b.normed(il, q, "attn_q_a_norm"))
        # bytes of a head of Q in f32: without rope, then the rotated part
        wide = 4 * self.head
        q_nope = g.view(q, (self.nope, self.heads, n), (wide, q.nb[1]))
        q_rope = g.view(q, (self.rope, self.heads, n), (wide, q.nb[1]), 4 * self.nope)
        k_rope = g.view(kv, (self.rope, 1, n), (kv.nb[1], kv.nb[1]), 4 * self.rank)
        compressed = g.view(kv, (self.rank, n), (kv.nb[1],))
        turned = g.rope(q_rope, b.pos), g.rope(k_rope, b.pos)
        for tensor in () if self.cut else (q_rope, k_rope, *turned):
            g.expand(tensor)
        q_rope, k_rope = turned
        compressed = b.normed(il, compressed, "attn_kv_a_norm")
        if not b.mla:
            cur = self._whole(q_nope, q_rope, k_rope, compressed)
        else:
            trans = self._store(k_rope, compressed)
            # without flash attention the latent space is used at any length
            if not self.many or not b.flash:
                cur = self._latent(q_nope, q_rope, trans)
            elif self.cut:
                cur = self._at_once(q_nope, q_rope)
            else:
                cur = self._made(q_nope, q_rope)
            if not self.cut:
                g.expand(cur)
        return b.mul_mat(il, "attn_output", cur)

    def _whole(self, q_nope: Tensor, q_rope: Tensor, k_rope: Tensor, compressed: Tensor) -> Tensor:
        """Attend with keys and values of every head (-mla 0)."""
        g, n, both = self.b.graph, self.b.tokens, 4 * (self.nope + self.value)
        kv = self.b.mul_mat(self.il, "attn_kv_b", compressed)
        strides = both, both * self.heads
        k_nope = g.view(kv, (self.nope, self.heads, n), strides)
        # a copy, as values lie between keys in kv's rows
        v = g.cont(g.view(kv, (self.value, self.heads, n), strides, 4 * self.nope))
        v = g.view(v, (self.value * self.heads, n), (4 * self.value * self.heads,))
        q = g.concat(q_nope, q_rope, 0)
        k = g.concat(k_nope, g.repeat(k_rope, *q_rope.ne), 0)
        return self.b.kv(self.il, q, k, v)

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

    def _parts(self, type_: str, heads: int) -> tuple[Tensor, Tensor]:
        """Return two parts of the cache: the latent, and the rotated one, repeated by head."""
        g, k_l, cells = self.b.graph, self.k_l, self.b.context.n_ctx
        nope = g.view(k_l, (self.rank, cells), (k_l.nb[1],), row_size(k_l.type, self.rope))
        rope = g.view(k_l, (self.rope, cells, 1), (k_l.nb[1], k_l.nb[2]))
        rope = rope if rope.type == type_ else g.cast(rope, "f16")
        return nope, g.repeat(rope, self.rope, cells, heads)

    def _made(self, q_nope: Tensor, q_rope: Tensor) -> Tensor:
        """Attend with keys and values of some heads at a time, made of the latent cache."""
        b, g, cells = self.b, self.b.graph, self.b.context.n_ctx
        kv_b = b.need(self.il, "attn_kv_b")
        whole, limit = kv_b.ne[1] * cells * 4 // (1 << 20), b.settings.attention_mib
        # n_max_head: the most heads whose f32 keys and values fit -amb (attn_max_batch, MiB)
        taken = self.heads
        if 0 < limit < whole:
            fitting = [
                self.heads // steps
                for steps in range(2, self.heads)
                if self.heads % steps == 0 and whole // steps <= limit
            ]
            taken = max(fitting, default=1)
        # f16 wherever another backend than the CPU is: REPEAT, CONCAT and CPY of
        # quantised caches fail
        # on CUDA ("There is still an issue with one or more of the ops")
        type_ = self.k_l.type if b.alone else "f16"
        nope, k_rope = self._parts(type_, taken)
        q = g.permute(g.concat(q_rope, q_nope, 0), 0, 2, 1, 3)
        g.expand(q)
        # rows of wkv_b per head: keys without rope, then values
        rows = kv_b.ne[1] // self.heads * taken
        wide = 4 * (self.nope + self.value)
        cur: Tensor | None = None
        # the results of all steps are joined, so each is alive until the next
        for step in range(self.heads // taken):
            part = g.view(kv_b, (kv_b.ne[0], rows), (kv_b.nb[1],), kv_b.nb[1] * rows * step)
            kv = g.mul_mat(part, nope)
            v = g.view(kv, (self.value, cells, taken), (wide * taken, wide), 4 * self.nope)
            k_nope = g.view(kv, (self.nope, cells, taken), (wide * taken, wide))
            v, k_nope = g.cast(v, type_), g.cast(k_nope, type_)
            g.expand(k_nope)
            g.expand(v)
            made = self._flash(some_heads(g, q, taken * step, taken), k_rope, k_nope, v)
            cur = made if cur is None else g.concat(cur, made, 0)
            g.expand(cur)
        assert cur is not None
        return cur

    def _at_once(self, q_nope: Tensor, q_rope: Tensor) -> Tensor:
        """Attend with keys and values of all heads that a device has."""
        b, g, il, cells = self.b, self.b.graph, self.il, self.b.context.n_ctx
        assert isinstance(b, CutBuilder)
        nope, k_rope = self._parts("f16", self.heads)

        def of_all(weight: Tensor, width: int) -> Tensor:
            made = g.mul_mat(g.reshape(weight, self.rank, self.heads * width), nope)
            return g.view(made, (width, cells, self.heads), (made.nb[1], 4 * width))

        # wk_b transposed when the model is loaded (llm_prepare_mla), a weight of this GPU
        type_ = b.need(il, "attn_k_b").type
        k_b = b.on(Tensor("NONE", type_, (self.rank, self.nope, self.heads, 1)), weight=True)
        v, k_nope = of_all(b.need(il, "attn_v_b"), self.value), of_all(k_b, self.nope)
        v, k_nope = g.cast(v, "f16"), g.cast(k_nope, "f16")
        g.expand(v)
        g.expand(k_nope)
        return self._flash(g.concat(q_rope, q_nope, 0), k_rope, k_nope, v)

    def _flash(self, q: Tensor, k_rope: Tensor, k_nope: Tensor, v: Tensor) -> Tensor:
        g = self.b.graph
        k = g.concat(k_rope, k_nope, 0)
        g.expand(k)
        if self.cut:
            q = g.permute(q, 0, 2, 1, 3)
            g.expand(q)
        cur = g.flash_attn(q, k, v, self.b.mask)
        return g.reshape(cur, cur.ne[0] * cur.ne[1], self.b.tokens)

    def _latent(self, q_nope: Tensor, q_rope: Tensor, trans: Tensor | None) -> Tensor:
        """Attend with all heads in the latent space."""
        b, g, k_l, cells = self.b, self.b.graph, self.k_l, self.b.context.n_ctx
        k_b, v_b = b.need(self.il, "attn_k_b"), b.need(self.il, "attn_v_b")
        # some files have wk_b as one matrix of all heads
        if k_b.ne[1] != self.rank:
            k_b = g.reshape(k_b, self.nope, self.rank, self.heads)
        nope = g.mul_mat(k_b, g.permute(q_nope, 0, 2, 1, 3))
        q = g.concat(g.permute(q_rope, 0, 2, 1, 3), nope, 0)
        row = row_size(k_l.type, self.rank + self.rope)
        # the whole rows are the keys, their latent part serves as values
        cache = g.view(k_l, (self.rank + self.rope, cells), (row,))
        lora = g.view(k_l, (self.rank, cells), (row,), row_size(k_l.type, self.rope))
        if self.cut or (b.flash and b.mla in (1, 3)):
            kqv = g.permute(g.flash_attn(q, cache, lora, b.mask), 0, 2, 1, 3)
        else:
            # -mla 2 and 3 have no transposed cache, so it is transposed for each layer
            kqv = self._by_heads(q, cache, trans or g.cont(g.transpose(lora)))
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
        if not 0 < limit < whole:
            # few tokens: heads and tokens change places around the matmuls
            if self.many:
                return g.mul_mat(trans, g.soft_max(g.mul_mat(cache, q), b.mask))
            kq = g.mul_mat(cache, g.permute(q, 0, 2, 1, 3))
            kq = g.soft_max(g.cont(g.permute(kq, 0, 2, 1, 3)), b.mask)
            return g.permute(g.mul_mat(trans, g.permute(kq, 0, 2, 1, 3)), 0, 2, 1, 3)
        heads = q.ne[2]
        each = -(-heads // min(-(-whole // limit), heads))
        cur: Tensor | None = None
        for i in range(0, heads, each):
            some = some_heads(g, q, i, min(each, heads - i))
            part = g.mul_mat(trans, g.soft_max(g.mul_mat(cache, some), b.mask))
            cur = part if cur is None else g.concat(cur, part, 2)
            g.expand(cur)
        assert cur is not None
        return cur
