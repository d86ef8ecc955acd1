"""Headers of known models, shipped with the page: tensors and sizes as published, vocabularies left out.

bundled.zip is made by `python fixtures/bundle.py` from the fixtures' headers.
"""

from __future__ import annotations

from importlib.resources import files
from io import BytesIO
from zipfile import ZipFile

from ..errors import ModelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model import Model


def names() -> list[str]:
    """The models' names, sorted."""
    with ZipFile(_archive()) as archive:
        return sorted(name.removesuffix(".gguf") for name in archive.namelist())


def read(name: str) -> Model:
    """The bundled model of that name. Raises ModelError."""
    from ..model import read_model

    with ZipFile(_archive()) as archive:
        try:
            data = archive.read(f"{name}.gguf")
        except KeyError:
            raise ModelError(f"{name}: no bundled model has that name") from None
    return read_model(_Header(f"{name}.gguf", data))


def _archive() -> BytesIO:
    return BytesIO(files(__package__).joinpath("bundled.zip").read_bytes())


class _Header:
    """A header without its file, whose size is not known."""

    size = None

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.read = BytesIO(data).read
