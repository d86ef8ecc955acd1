"""Which operations a backend has kernels for: the rows of ops.tsv.

    kernels = kernels_of("CUDA", mul_mat, cpy)     # the functions that words of its column name
    kernels["SUM_ROWS"](op, device)                # whether it runs, wherever its sources are

A cell has words that must all hold, from left to right:

    always              whatever its sources are
    +cuda_sets          builds with this rule
    src0=f32|f16        the type of the first source; src0!=...: any other; a word in capitals: the
                        types whose line in types.tsv has it
    dst=src0            the result has the first source's type
    src0.ne0=64|128     its first dimension
    src0:rows           its layout: contiguous_rows; contiguous; contiguous1: above dimension 1
    UNARY, GLU          an activation that all backends have
    mul_mat             a function of the backend's own: operation, device -> whether it runs

src0, src1 ... are sources, dst is the result, srcs all sources, all those and the result.
"""

from __future__ import annotations

from functools import reduce

from ..builds import Rules
from ..ggml.tensor import Tensor
from ..tables import rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Holds = Callable[[Tensor, Any], bool]  # the operation, and the Backend that it is for
    Kernels = Mapping[str, Holds]

_ROWS = rows("backends/ops.tsv")
# activations that all backends have, and those that gate
_UNARY_TEXT = """
ABS SGN NEG STEP GELU SILU RELU SIGMOID HARDSIGMOID HARDSWISH GELU_ERF GELU_QUICK TANH EXP EXPM1
SOFTPLUS ELU XIELU FLOOR CEIL ROUND TRUNC
"""
_GLU_TEXT = "REGLU GEGLU SWIGLU SWIGLU_OAI GEGLU_ERF GEGLU_QUICK SWIGLU_CLAMP"
UNARY, GLU = frozenset(_UNARY_TEXT.split()), frozenset(_GLU_TEXT.split())
_TYPES = rows("backends/types.tsv")
_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "dst": lambda op: op,
    "src0": lambda op: op.src[0],
    "src1": lambda op: op.src[1],
    "src2": lambda op: op.src[2],
    "src3": lambda op: op.src[3],
}
_SEVERAL: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "srcs": lambda op: op.src,
    "all": lambda op: (op, *op.src),
}
_LAYOUTS: dict[str, Callable[[Tensor], bool]] = {
    "rows": Tensor.contiguous_rows,
    "contiguous": Tensor.contiguous,
    "contiguous1": lambda t: t.contiguous(1),
    "contiguous2": lambda t: t.contiguous(2),
}
_WORDS: dict[str, Holds] = {
    "always": lambda op, _: True,
    "UNARY": lambda op, _: op.param in UNARY,
    "GLU": lambda op, _: op.param in GLU,
}


def kernels_of(backend: str, *functions: Holds) -> Kernels:
    """Return what must hold for each operation of a backend's column."""
    own = {function.__name__: function for function in functions}
    return {
        row["op"]: reduce(_both, [_condition(word, backend, own) for word in row[backend].split()])
        for row in _ROWS
        if row[backend] != "-"
    }


def types_of(backend: str, op: str) -> frozenset[str]:
    """Return the types whose line in types.tsv has that word for a backend."""
    return frozenset([row["type"] for row in _TYPES if op in row[backend].split()])


def _both(first: Holds, second: Holds) -> Holds:
    return lambda op, device: first(op, device) and second(op, device)


def _condition(word: str, backend: str, own: Mapping[str, Holds]) -> Holds:
    """Return what a word says. Raises KeyError or AttributeError for one that says nothing."""
    if word.startswith("+"):
        rule: Any = getattr(Rules, word[1:])
        return lambda _, device: bool(device.rules.has(rule))
    what, _, layout = word.partition(":")
    if layout:
        return _of(what, _LAYOUTS[layout])
    what, _, wanted = word.partition("=")
    if wanted in _ONE:
        other = _ONE[wanted]
        if what in _ONE:
            one = _ONE[what]
            return lambda op, _: one(op).type == other(op).type
        several = _SEVERAL[what]
        return lambda op, _: all(t.type == other(op).type for t in several(op))
    if not wanted:
        return _WORDS.get(word) or own[word]
    what, _, dimension = what.partition(".")
    if dimension:
        sizes = frozenset(map(int, wanted.split("|")))
        return _of(what, lambda t: t.ne[0] in sizes)
    types = _types(wanted, backend)
    if what.endswith("!"):
        return _of(what[:-1], lambda t: t.type not in types)
    return _of(what, lambda t: t.type in types)


def _of(what: str, holds: Callable[[Tensor], bool]) -> Holds:
    if what in _ONE:
        one = _ONE[what]
        return lambda op, _: holds(one(op))
    several = _SEVERAL[what]
    return lambda op, _: all(map(holds, several(op)))


def _types(wanted: str, backend: str) -> frozenset[str]:
    """Return the types that words separated by | are, those in capitals by types.tsv."""
    found: frozenset[str] = frozenset()
    for word in wanted.split("|"):
        found |= types_of(backend, word) if word.isupper() else {word}
    return found
