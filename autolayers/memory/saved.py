"""What llama-server keeps of a conversation that left its slot: bytes of its state by tokens, and
of a checkpoint.

Mirrors, as modelled: llama_context::state_seq_get_size, the state_write of src/llama-kv-cache*.cpp
and llama-memory-*.cpp, server_prompt_cache and create_checkpoint of tools/server. Masked cells of a
sliding window are left out, and a checkpoint (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) leaves out what
can be rolled back.
"""

from __future__ import annotations

from ..gguf import row_size
from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.hparams import Hparams
    from .cache import Cache, CacheTensor, Memory
    from .context import Context

_BEGIN = 8  # magic, sequence
_CELL, _POSITION = 12, 12  # of each cell; its position in an image, or its token, in addition
_KV, _TENSOR = 4 + 16, 12  # cells, and the header of the data; of each tensor's rows
_RECURRENT = 4 + 8 + 8  # cells, the cell, the header of the data
_DSV4, _DSV4_ROWS, _DSV4_STATE, _DSV4_TENSOR = 12, 16, 24, 28
# DeepSeek-V4's compressors: CSA joins 4 tokens in a row of its cache, HCA 128
_RATIOS = {"csa": 4, "hca": 128}  # tokens of a row; lid has the first one's


@dataclass(frozen=True)
class State:
    """Bytes of one context's state: `fixed`, `cell` for each token and `windowed` for each that the
    sliding `window` still sees, and (bytes, tokens) of rows that several tokens share. Of a
    checkpoint `kept` and `kept_cell`."""

    fixed: int
    cell: int = 0
    windowed: int = 0
    window: int = 0
    chunked: bool = False
    rows: tuple[tuple[int, int], ...] = ()
    kept: int = 0
    kept_cell: int = 0

    def size(self, n: int) -> int:
        """Return the bytes of a saved conversation of n tokens."""
        return (
            self.fixed
            + n * self.cell
            + self._seen(n) * self.windowed
            # a row is written once all of its tokens are known
            + sum(size * (n // tokens) for size, tokens in self.rows)
        )

    def checkpoint(self, n: int) -> int:
        """Return the bytes of a checkpoint after n tokens."""
        return self.kept + n * self.kept_cell + self._seen(n) * self.windowed

    def _seen(self, n: int) -> int:
        """Return the cells that the last of n positions sees (llama_hparams::is_masked_swa)."""
        if self.chunked:
            return (n - 1) % self.window + 1 if n else 0
        return min(n, self.window)


def state_of(hp: Hparams, context: Context, memory: Memory) -> State:
    """Return the saved state of one sequence of a context with these caches."""
    # which caches there are decides what a checkpoint must hold
    kinds = {cache.kind for cache in memory.caches}
    dsv4 = not kinds.isdisjoint(_RATIOS)
    # what a checkpoint leaves out: nothing of caches that always roll back
    gated = "swa" in kinds or "recurrent" in kinds
    fixed = saved = _BEGIN + _DSV4 * dsv4
    cell = kept_cell = windowed = 0
    rows: list[tuple[int, int]] = []
    for cache in memory.caches:
        # compressed rows: no cells of their own, so no positions to save
        if dsv4 and cache.kind in (*_RATIOS, "lid") and not cache.recurrent:
            fixed += _DSV4_ROWS + len(cache.layers) * (4 + _DSV4_TENSOR)
            rows.append(_shared_row(cache))
            continue
        size, each = _sizes(hp, context, cache)
        fixed += size
        # masked cells are left out, so only the window's count
        if cache.kind == "swa":
            windowed = each
        else:
            cell += each
        # PARTIAL_ONLY: full attention is rolled back by dropping cells, so it is not saved again
        if cache.recurrent or cache.kind == "swa" or not gated:
            saved += size
        if not gated:
            kept_cell += each
    # a symmetric window looks half of it back, and forward
    window = hp.n_swa // 2 + 1 if hp.swa_type == "symmetric" else hp.n_swa
    return State(
        fixed,
        cell,
        windowed,
        window if windowed else 0,
        hp.swa_type == "chunked" and windowed > 0,
        tuple(rows),
        saved,
        kept_cell,
    )


def _sizes(hp: Hparams, context: Context, cache: Cache) -> tuple[int, int]:
    """Return a cache's bytes, and those of each cell."""
    if not cache.recurrent:
        # Mirror llama_kv_cache::state_write: bytes, and those of each cell.
        # a stream that holds nothing of the sequence is one count of 0
        fixed = 4 + 4 * (cache.n_stream - 1) + _KV
        # some have positions of their own (llama_kv_cache::has_cell_ext)
        each = _CELL + _POSITION * (hp.n_pos_per_embd > 1 or hp.ple_conv_state() > 0)
        for layer in cache.layers:
            for tensor in (layer.k, layer.v):
                if tensor is not None:
                    n = tensor.ne[0]
                    # by elements; other layers may have more
                    # a transposed V is saved row by row, without the padding to the widest layer
                    if tensor is layer.v and context.v_trans:
                        n = min(n, hp.n_embd_v_gqa(layer.il))
                    each += row_size(tensor.type, n)
                    fixed += _TENSOR
        return fixed, each
    whole = _recurrent(hp, cache) if cache.kind == "recurrent" else _compressor(cache)
    return whole, 0


def _shared_row(cache: Cache) -> tuple[int, int]:
    """Return the bytes of a row of compressed tokens, and how many tokens share it."""
    size = sum(_row(tensor) for layer in cache.layers for tensor in layer.tensors)
    return size, _RATIOS.get(cache.kind, _RATIOS["csa"])


def checkpoint_of(memory: Memory, context: Context, states: Sequence[State]) -> int:
    """Return the bytes of a context checkpoint, with a draft's part, at the end of a slot's
    context; 0 where llama-server makes none, as all caches can be rolled back."""
    kinds = {cache.kind for cache in memory.caches if cache.layers}
    windows = "swa" in kinds and not context.swa_full
    if not windows and not any(kind == "recurrent" or kind.endswith("-state") for kind in kinds):
        return 0
    return sum(state.checkpoint(context.n_ctx_seq) for state in states)


def _row(tensor: CacheTensor) -> int:
    return row_size(tensor.type, tensor.ne[0])


def _recurrent(hp: Hparams, cache: Cache) -> int:
    """Mirror llama_memory_recurrent::state_write, of one sequence's cell."""
    size = _RECURRENT
    for layer in cache.layers:
        size += 2 * _TENSOR + 4 * hp.n_embd_r() + 4 * hp.n_embd_s()
        # the convolution's history of a PLE layer
        size += 8 + 4 * hp.ple_conv_state() if layer.p is not None else 0
    return size


def _compressor(cache: Cache) -> int:
    """Mirror llama_dsv4_comp_state::state_write, of one stream."""
    size = _DSV4_STATE
    for layer in cache.layers:
        size += 4 + sum(_DSV4_TENSOR + _row(tensor) * tensor.ne[1] for tensor in layer.tensors)
    return size
