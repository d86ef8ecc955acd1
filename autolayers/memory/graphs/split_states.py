"""Whether the graph of -sm tensor can be computed in slices: along which dimension each tensor is
cut, and how much of it each device has.

    why = abort(nodes, slices)     # "" if they can be computed

llama.cpp asks this when a graph is first computed, after every buffer is allocated: what it
cannot cut ends the server in its warm-up, or with the first token. Mirrors
ggml_backend_meta_get_split_state (ggml/src/ggml-backend-meta.cpp), the same from build 11311 to
11549.
"""

from __future__ import annotations

from math import prod

from .repeats import block_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...ggml.tensor import Tensor
    from ..slices import Segment, Slices

_MIRRORED, _PARTIAL, _UNKNOWN = 10, 11, 99
_DIMS = 4
# operations whose results have a source's cut, if all sources have the same
_SAME = ("SQR", "SQRT", "LOG", "SIN", "COS", "REPEAT", "SCALE", "SOFT_MAX", "CLAMP", "FILL")
_ELEMENTWISE = frozenset((*_SAME, "LEAKY_RELU", "UNARY", "GLU"))
_BROADCAST = frozenset(("ADD", "ADD_ID", "SUB", "MUL", "DIV"))
# every row needs all of its columns
_PER_ROW = frozenset(
    ("SUM_ROWS", "CUMSUM", "MEAN", "ARGMAX", "NORM", "RMS_NORM", "GROUP_NORM", "L2_NORM")
) | {"ARGSORT", "TOP_K"}


class _Abort(Exception):
    """One of its assertions does not hold."""


class _State:
    """ggml_backend_meta_split_state: `axis` is a dimension or one of the constants above."""

    __slots__ = ("axis", "segments")

    def __init__(self, axis: int, segments: list[Segment] | None = None, times: int = 1) -> None:
        self.axis = axis
        self.segments = segments if segments is not None else [(times, [])]

    @property
    def cut(self) -> bool:
        return self.axis < _DIMS

    @property
    def times(self) -> int:
        """`nr` of the first segment."""
        return self.segments[0][0]

    @property
    def single(self) -> bool:
        return len(self.segments) == 1

    def sums(self) -> list[int]:
        """Elements of each device."""
        return [
            sum(parts)
            for parts in zip(*[[t * n for n in widths] for t, widths in self.segments], strict=True)
        ]


def abort(nodes: Iterable[Tensor], slices: Slices) -> str:
    """Return why llama.cpp ends when it computes these nodes, "" if it does not."""
    states, layer = _States(slices), ""
    for node in nodes:
        block = block_of(node)
        layer = layer if block < 0 else f"layer {block}"
        # those of the CPU see whole tensors
        if node.backend == 0:
            try:
                states.of(node)
            except _Abort as error:
                return (
                    f"-sm tensor cannot cut {layer or 'this graph'} over these devices "
                    f"({node.op}: {error}); llama.cpp aborts while it decodes"
                )
    return ""


def _hold(condition: bool, what: str) -> None:
    if not condition:
        raise _Abort(what)


class _States:
    """The states of one graph's tensors."""

    def __init__(self, slices: Slices) -> None:
        self.slices = slices
        self._known: dict[int, _State] = {}

    def of(self, tensor: Tensor) -> _State:
        found = self._known.get(id(tensor))
        if found is None:
            found = self._known[id(tensor)] = self._calculated(tensor)
        return found

    def _calculated(self, tensor: Tensor) -> _State:
        if not tensor.nelements:
            return _State(_UNKNOWN)
        if tensor.op == "NONE":
            # the state of a weight, a cache or an input
            if tensor.view_src is not None:
                return self.of(tensor.view_src)
            buffer = tensor.buffer
            # in RAM: copied to every device
            if buffer is None or buffer.device != 0 or not tensor.name:
                return _State(_MIRRORED)
            if tensor.name.endswith("ffn_down_exps.bias"):
                return _State(_PARTIAL)
            axis, segments = self.slices.parts(tensor.name, tensor.type, tensor.ne)
            return _State(_MIRRORED) if axis < 0 else _State(axis, segments)
        # a result of the CPU is copied to all devices
        if tensor.backend != 0:
            return _State(_MIRRORED)
        sources = [_State(_UNKNOWN) if s is tensor else self.of(s) for s in tensor.src]
        own = [s for s, source in zip(sources, tensor.src, strict=True) if source is not tensor]
        _hold(all(s.axis != _UNKNOWN for s in own), "a source is empty")
        state = _RULES.get(tensor.op, _scalar)(tensor, sources)
        if state.cut:
            # give a result the ratio of its first source that is cut, which the others must have
            # too
            n = tensor.ne[state.axis]
            cut = [(s, t) for s, t in zip(sources, tensor.src, strict=True) if s.cut]
            _hold(bool(cut), "no source is cut")
            times = state.times
            for i, (source, of) in enumerate(cut):
                whole, sums = of.ne[source.axis], source.sums()
                if i == 0:
                    _hold(
                        all(s * n % (whole * times) == 0 for s in sums), "the parts do not divide"
                    )
                    state.segments = [(times, [s * n // (whole * times) for s in sums])]
                    continue
                mine = state.segments[0][1]
                same = all(a * times * whole == b * n for a, b in zip(mine, sums, strict=True))
                _hold(same, "its sources are cut at different places")
        return state


def _equal(a: _State, b: _State) -> bool:
    return a.axis == b.axis and (not a.cut or a.sums() == b.sums())


def _generic(tensor: Tensor, sources: Sequence[_State], scalar_only: bool = False) -> _State:
    own = [s for s, source in zip(sources, tensor.src, strict=True) if source is not tensor]
    _hold(bool(own), "it has no source")
    _hold(all(_equal(s, own[0]) for s in own), "its sources are cut at different places")
    _hold(not (scalar_only and own[0].cut), "a cut source")
    return _copy(own[0])


def _copy(state: _State) -> _State:
    return _State(state.axis, list(state.segments))


def _scalar(tensor: Tensor, sources: Sequence[_State]) -> _State:
    return _generic(tensor, sources, scalar_only=True)


def _per_row(tensor: Tensor, sources: Sequence[_State]) -> _State:
    _hold(sources[0].axis != 0, "rows are cut")
    return _copy(sources[0])


def _broadcast(tensor: Tensor, sources: Sequence[_State]) -> _State:
    a, b = sources[0], sources[1]
    if a.cut and tensor.src[1].ne[a.axis] == 1 and b.axis == _MIRRORED:
        return _copy(a)
    third = sources[2] if len(sources) > 2 else None
    if third is not None:
        summed = a.axis == _MIRRORED and b.axis == _PARTIAL
        if third.axis == _MIRRORED and (a.axis == b.axis or summed):
            return _copy(a)
        _hold(third.axis == _MIRRORED, "a cut source")
    return _generic(tensor, sources)


def _concat(tensor: Tensor, sources: Sequence[_State]) -> _State:
    a, b = sources
    for one, other in ((a, b), (b, a)):
        if one.axis == _MIRRORED and other.cut:
            _hold(tensor.param != other.axis, "joined where it is cut")
            return _copy(other)
    if a.axis == b.axis and a.axis != tensor.param:
        return _copy(a)
    return _scalar(tensor, sources)


def _mul_mat(tensor: Tensor, sources: Sequence[_State]) -> _State:
    a, b = sources[0], sources[1]
    if a.axis == _MIRRORED and (b.axis == _MIRRORED or b.axis == 1):
        return _copy(b)
    if a.axis == 1 and b.axis == _MIRRORED:
        return _State(0)
    if a.axis == b.axis == 0:
        _hold(_equal(a, b), "its sources are cut at different places")
        # partial sums, which are added up before they are read
        return _State(_MIRRORED)
    if a.cut and a.axis >= 2 and b.axis in (a.axis, _MIRRORED):
        _hold(b.axis == _MIRRORED or _equal(a, b), "its sources are cut at different places")
        return _copy(a)
    raise _Abort("unsupported mul_mat split states")


def _n_dims(tensor: Tensor) -> int:
    return max([dim for dim in range(_DIMS) if tensor.ne[dim] > 1], default=0) + 1


def _reshape(tensor: Tensor, sources: Sequence[_State]) -> _State:
    state, of = sources[0], tensor.src[0]
    if not state.cut:
        return _copy(state)
    times = state.times
    before = prod(of.ne[: state.axis + 1])
    if state.single:
        before //= times
        if state.axis == _n_dims(of) - 1 and times == 1:
            return _State(_n_dims(tensor) - 1)
        complete = all(n in (0, of.ne[0]) for n in state.segments[0][1])
        row = state.axis == 0 and tensor.ne[0] == of.ne[0] and tensor.ne[1] == 1
        # a whole row on one device is cut along the next dimension
        if row and times == 1 and complete:
            return _State(1)
    after = 1
    for dim in range(_DIMS):
        after *= tensor.ne[dim]
        if after % before == 0:
            return _State(dim, times=after // before)
        if after > before:
            _hold(state.single and times == 1, "a cut of several parts in another shape")
            return _State(dim)
    raise _Abort("shape mismatch")


def _view(tensor: Tensor, sources: Sequence[_State]) -> _State:
    state, of = sources[0], tensor.src[0]
    if tensor.contiguous() and of.contiguous():
        return _reshape(tensor, sources)
    long = [dim for dim in range(_DIMS) if tensor.ne[dim] != 1 or of.ne[dim] != 1]
    if all(tensor.nb[dim] == of.nb[dim] for dim in long):
        return _copy(state)
    if not tensor.permuted and not of.permuted and state.axis < _DIMS - 1:
        for dim in range(_DIMS - 1):
            if tensor.nb[dim + 1] == of.nb[state.axis + 1]:
                return _State(dim)
        raise _Abort("a view of other rows")
    _hold(state.axis in (_MIRRORED, _PARTIAL), "view of permuted tensor not implemented")
    return _copy(state)


def _moved(state: _State, axis: int) -> _State:
    _hold(state.single or state.times == 1, "a cut of several parts in another order")
    return _State(axis, times=state.times)


def _permute(tensor: Tensor, sources: Sequence[_State]) -> _State:
    state, axes = sources[0], tensor.param
    if not state.cut or not isinstance(axes, tuple):
        return _copy(state)
    return _moved(state, axes[state.axis])


def _transpose(tensor: Tensor, sources: Sequence[_State]) -> _State:
    state = sources[0]
    return _moved(state, state.axis ^ 1) if state.axis < 2 else _copy(state)


def _set_rows(tensor: Tensor, sources: Sequence[_State]) -> _State:
    rows, places, into = sources
    _hold(rows.axis != 1 and places.axis == _MIRRORED, "rows of different devices")
    _hold(_equal(rows, into), "its sources are cut at different places")
    return _copy(rows)


def _rope(tensor: Tensor, sources: Sequence[_State]) -> _State:
    _hold(sources[1].axis == _MIRRORED, "cut positions")
    return _copy(sources[0])


def _pad(tensor: Tensor, sources: Sequence[_State]) -> _State:
    axis = sources[0].axis
    same = not sources[0].cut or tensor.ne[axis] == tensor.src[0].ne[axis]
    _hold(same, "padded where it is cut")
    return _copy(sources[0])


def _flash_attn(tensor: Tensor, sources: Sequence[_State]) -> _State:
    q, k, v = sources[:3]
    param = tensor.param
    masked = isinstance(param, tuple) and param[0] is not None
    # sinks come after the mask
    more = list(sources[3:])
    if masked:
        _hold(more.pop(0).axis == _MIRRORED, "a cut mask")
    if q.axis == _MIRRORED:
        same = all(s.axis == _MIRRORED for s in (k, v, *more))
        _hold(same, "keys are cut and queries are not")
        return _State(_MIRRORED)
    whole = k.axis == v.axis and k.axis in (2, _MIRRORED)
    _hold(q.axis == 2 and whole, "heads are cut")
    _hold(not more or more[0].axis == 0, "sinks that are not cut")
    return _State(1)


def _indexer(tensor: Tensor, sources: Sequence[_State]) -> _State:
    _hold(all(s.axis == _MIRRORED for s in sources), "a cut source")
    return _State(_MIRRORED)


def _ssm_conv(tensor: Tensor, sources: Sequence[_State]) -> _State:
    a, b = sources[0], sources[1]
    if a.axis == b.axis and a.axis in (0, 1):
        return _State(1 - a.axis)
    return _generic(tensor, sources)


def _delta_net(tensor: Tensor, sources: Sequence[_State]) -> _State:
    if all(s.axis == _MIRRORED for s in sources):
        return _State(_MIRRORED)
    heads = all(s.axis == 1 for s in sources[:5])
    _hold(heads and sources[5].axis in (0, 1, 2), "a delta net of cut heads")
    return _State(0)


_RULES: dict[str, Callable[[Tensor, Sequence[_State]], _State]] = {
    **dict.fromkeys(_ELEMENTWISE, _generic),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(_PER_ROW, _per_row),
    "CONCAT": _concat,
    "MUL_MAT": _mul_mat,
    "MUL_MAT_ID": _mul_mat,
    "CPY": lambda tensor, sources: (
        _reshape(tensor, sources) if sources[0].cut else _generic(tensor, sources)
    ),
    "CONT": _reshape,
    "RESHAPE": _reshape,
    "VIEW": _view,
    "PERMUTE": _permute,
    "TRANSPOSE": _transpose,
    "GET_ROWS": lambda tensor, sources: (
        _copy(sources[0])
        if sources[0].axis == 0 and sources[1].axis == _MIRRORED
        else _scalar(tensor, sources)
    ),
    "SET_ROWS": _set_rows,
    "ROPE": _rope,
    "ROPE_BACK": _rope,
    "PAD": _pad,
    "FLASH_ATTN_EXT": _flash_attn,
    "LIGHTNING_INDEXER": _indexer,
    "SSM_CONV": _ssm_conv,
    "GATED_DELTA_NET": _delta_net,
}
