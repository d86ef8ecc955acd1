"""Headers shipped with the package, without vocabularies: known models, and a tiny model of each
architecture.

    models()  # ("bge-m3-f16", ..., "qwen3-8b-q4_k_m", ...): tensors and sizes as published
    architectures()  # ("afmoe-moe", ...): a few MiB each, for `autolayers check`
    mtp()                                # ("mtp/qwen35", ...): the same with MTP blocks
    read("qwen3-8b-q4_k_m")              # a Model
    data("afmoe-moe")                    # the header's bytes

headers.zip is made by `python fixtures/bundle.py` from the fixtures' headers.
"""

from __future__ import annotations

import re
from importlib.resources import files
from io import BytesIO
from zipfile import ZipFile

from ..errors import ModelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model import Model

# a known model's name ends with its quantisation
_MODEL = re.compile(r"-(q\d_\w+|iq\d_\w+|mxfp4|f16)$")


def models() -> tuple[str, ...]:
    """Return the names of the known models, with their quantisation."""
    return tuple(name for name in _names() if _MODEL.search(name))


def architectures() -> tuple[str, ...]:
    """Return the names of the tiny models, one of each architecture and kind (dense, moe)."""
    # those of mtp() lie in a directory of their own
    return tuple(name for name in _names() if not _MODEL.search(name) and "/" not in name)


def mtp() -> tuple[str, ...]:
    """Return the names of the tiny models with MTP blocks."""
    return tuple(name for name in _names() if "/" in name)


def data(name: str) -> bytes:
    """Return the header of that name. Raises ModelError."""
    with _archive() as archive:
        try:
            return archive.read(f"{name}.gguf")
        except KeyError:
            raise ModelError(f"{name}: no bundled model has that name") from None


def read(name: str) -> Model:
    """Return the model of that name. Raises ModelError."""
    from ..model import read_model

    return read_model(_Header(f"{name}.gguf", data(name)))


def _names() -> list[str]:
    with _archive() as archive:
        return sorted(name.removesuffix(".gguf") for name in archive.namelist())


def _archive() -> ZipFile:
    # Read as a resource: the package itself may lie in a zip
    return ZipFile(BytesIO(files(__package__).joinpath("headers.zip").read_bytes()))


class _Header:
    """A header without its file, whose size is not known."""

    size = None

    def __init__(self, name: str, header: bytes) -> None:
        self.name = name
        self.read = BytesIO(header).read
