"""Other files that a model could have: pure quantisations below (and above) the type and the size
of the one that is there.

    for kind, smaller in below(model):      # the largest first
        kind, smaller.size                  # "iq4_xs", bytes
    for kind, larger in above(model):       # the largest first
        kind, larger.size                   # "q8_0", bytes

A file's name says the type of most of its weights; mixtures of types (Q4_K_M, UD-Q4_K_XL) give some
tensors more bits. So what only has its larger tensors made smaller is no quantisation: each one
here is the whole model in one type, and the file's own type is left out, which would be the same
name again.
"""

from __future__ import annotations

from ..gguf import BY_NAME
from ..model.quantisation import WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model import Model

QUANTISATIONS = WHOLE[1:]  # f16 is no quantisation
_LESS = 0.97  # of the file's or the last one's size: nearer ones are not another file


def below(model: Model) -> Iterator[tuple[str, Model]]:
    """Yield types that are smaller than the file, and the model with all its matrices in that
    type."""
    own = main_type(model)
    size = model.size
    for kind in QUANTISATIONS:
        # `larger`: matrices of smaller types too, so that the file is really pure.
        smaller = model.quantised(kind, larger=True)
        # Rows that a type's blocks do not divide have another type: most of the file must become
        # smaller, and smaller than in the last quantisation.
        fewer = _of_type(model, own, smaller) < _of_type(model, own, model)
        if kind != own and fewer and smaller.size < _LESS * size:
            yield kind, smaller
            size = smaller.size


def above(model: Model) -> Iterator[tuple[str, Model]]:
    """Yield types that are larger than the file, and the model with all its matrices in that
    type, the largest first."""
    own, last = main_type(model), 0
    larger = []
    for kind in reversed(QUANTISATIONS):
        other = model.quantised(kind, larger=True)
        # Rows that its blocks do not divide have another type: that file is no such one
        if main_type(other) == kind != own and _LESS * other.size > max(model.size, last):
            larger.append((kind, other))
            last = other.size
    yield from reversed(larger)


def _of_type(model: Model, kind: str, other: Model) -> int:
    """Return the bytes that a model's tensors of this type have in another file of it."""
    tensors = model.header.tensors.items()
    names = [name for name, info in tensors if info.type == kind]
    return sum(other.header.tensors[name].n_bytes for name in names)


def main_type(model: Model) -> str:
    """Return the type that most bytes of the blocks' matrices have, "" for none."""
    sizes: dict[str, int] = {}
    for info in model.header.tensors.values():
        # Norms and biases stay f32 in every file, so only matrices count.
        if info.type in BY_NAME and info.n_dims > 1 and info.name.startswith("blk."):
            sizes[info.type] = sizes.get(info.type, 0) + info.n_bytes
    return max(sizes, key=lambda each: sizes[each], default="")
