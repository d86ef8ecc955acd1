"""Headers shipped with the package, without vocabularies: known models, and a tiny model of each
architecture.

    models()  # ("bge-m3-f16", ..., "qwen3-8b-q4_k_m", ...): tensors and sizes as published
    architectures()  # ("afmoe-moe", ...): a few MiB each, for `autolayers check`
    mtp()                                # ("mtp/qwen35", ...): the same with MTP blocks
    data("with/adapter")                 # and with/projector: loaded with one of them
    read("qwen3-8b-q4_k_m")              # a Model
    data("afmoe-moe")                    # the header's bytes

headers.zip is made by `python fixtures/bundle.py` from the fixtures' headers. It need not have all
quantisations of models.csv: one is made to the size of another's published file.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from io import BytesIO
from zipfile import ZipFile

from ..errors import ModelError
from ..gguf import Header
from ..model.quantisation import WHOLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..gguf import TensorInfo
    from ..model import Model

_RAISED = ("q6_K", "q8_0", "f16")  # what mixes have beside a type
_SIZES = re.compile(r"(?<=_K)_\w+$")  # Q4_K_M, Q4_K_XL and so on are mixes of Q4_K
_ALIKE = 0.003  # sizes this close are one: a file has its header beside the tensors
# a known model's name ends with its quantisation
_MODEL = re.compile(r"-(q\d_\w+|iq\d_\w+|mxfp4|b?f16)$")


def models() -> tuple[str, ...]:
    """Return the names of the known models, with their quantisation."""
    return tuple(sorted({*filter(_MODEL.search, _names()), *_sizes()}))


def architectures() -> tuple[str, ...]:
    """Return the names of the tiny models, one of each architecture and kind (dense, moe)."""
    # those of mtp() and with/ lie in directories of their own
    return tuple(name for name in _names() if not _MODEL.search(name) and "/" not in name)


def mtp() -> tuple[str, ...]:
    """Return the names of the tiny models with MTP blocks."""
    return tuple(name for name in _names() if name.startswith("mtp/"))


def data(name: str) -> bytes:
    """Return the header of that name. Raises ModelError."""
    with _archive() as archive:
        try:
            return archive.read(f"{name}.gguf")
        except KeyError:
            raise ModelError(f"{name}: no bundled model has that name") from None


def read(name: str) -> Model:
    """Return the model of that name. Raises ModelError."""
    from ..model import Model, read_model
    from .published import MODELS, stem

    size, there = _sizes().get(name, 0), _names()
    bundled = name in there
    of = name
    # Of the same model: the largest file has every matrix in its widest type
    if not bundled and size:
        shape = MODELS[stem(name)].shape
        of = next(other for other in there if _MODEL.search(other) and stem(other) == shape)
    model = read_model(_Header(f"{of}.gguf", data(of)))
    if not size or (bundled and abs(model.size - size) <= _ALIKE * size):
        return model
    made = model.header
    note = "the file's size is known, the types of its tensors are not: sizes are a percent unsure"
    tensors = _sized(model, name, size)
    header = Header(3, made.alignment, made.metadata, tensors, made.files, (note,))
    return Model(header, f"{name}.gguf")


@cache
def _sizes() -> dict[str, int]:
    """Return the bytes of published files by their names, where they are known."""
    from .published import MODELS

    return {name: size for row in MODELS.values() for name, size in row.files.items() if size}


def _sized(model: Model, name: str, size: int) -> dict[str, TensorInfo]:
    """Return the tensors of a file of that size: matrices of the type that its name says, or of the
    next smaller one, and as many spread over the layers of a larger type as the size leaves room
    for, which is what the mixes of llama-quantize and others amount to."""
    from .published import quantisation

    kind = _SIZES.sub("", quantisation(name).removeprefix("UD-")).lower()
    at = next((i for i, type in enumerate(WHOLE) if type.lower() == kind), 0)
    smaller = next(
        made
        for type in WHOLE[at:]
        if (made := model.quantised(type, larger=True)).size <= size or type == WHOLE[-1]
    )
    tensors = dict(smaller.header.tensors)
    missing = max(0, size - smaller.size)
    # Its own type, where the one below had to be taken
    for type in (WHOLE[at], *_RAISED):
        larger = model.quantised(type, larger=True).header.tensors
        gains = {key: wide.n_bytes - tensors[key].n_bytes for key, wide in larger.items()}
        gains = {key: gain for key, gain in gains.items() if 0 < gain <= missing}
        if sum(gains.values()) >= missing:
            break
    # Large ones first, such as the table of tokens; the rest is spread evenly
    for key in sorted(gains, key=lambda key: -gains[key]):
        if missing / 20 < gains[key] <= missing:
            tensors[key], missing = larger[key], missing - gains.pop(key)
    rest, owed = sum(gains.values()), 0
    for key, gain in gains.items():
        owed += gain * missing
        if owed >= gain * rest / 2:
            tensors[key], owed = larger[key], owed - gain * rest
    return tensors


@cache
def _names() -> tuple[str, ...]:
    with _archive() as archive:
        return tuple(sorted(name.removesuffix(".gguf") for name in archive.namelist()))


def _archive() -> ZipFile:
    # Read as a resource: the package itself may lie in a zip
    return ZipFile(BytesIO(files(__package__).joinpath("headers.zip").read_bytes()))


class _Header:
    """A header without its file, whose size is not known."""

    size = None

    def __init__(self, name: str, header: bytes) -> None:
        self.name = name
        self.read = BytesIO(header).read
