"""The contents of a GGUF file before its tensor data."""

from __future__ import annotations

from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class ArrayInfo:
    """An array that was skipped: `type` of an element as GGUF names it ("str", "f32", ...), and how
    many.

    A single string too long to keep is `ArrayInfo("u8", its length)`.
    """

    type: str
    length: int

    def __len__(self) -> int:
        return self.length


class _OddInt(int):
    gguf_type: str


class _OddFloat(float):
    gguf_type: str


class _OddList(tuple[object, ...]):
    gguf_type: str


_PLAIN = {bool: "bool", int: "u32", float: "f32", str: "str"}


def gguf_type(value: object) -> str:
    """Return the GGUF type of a value of metadata, for example u32 or arr[f32]."""
    if isinstance(value, ArrayInfo):
        return f"arr[{value.type}]"
    if isinstance(value, (_OddInt, _OddFloat, _OddList)):
        return value.gguf_type
    if isinstance(value, tuple):
        return f"arr[{_PLAIN[type(value[0])]}]" if value else "arr[u32]"
    return _PLAIN.get(type(value), "")


def with_type(value: object, type_: str) -> object:
    """Return a value that is of this GGUF type even where the usual one of its kind is another."""
    if gguf_type(value) == type_:
        return value
    odd: Any
    if isinstance(value, tuple):
        odd = _OddList(value)
    else:
        odd = _OddInt(value) if isinstance(value, int) else _OddFloat(value)  # type: ignore[arg-type]
    odd.gguf_type = type_
    return odd


class TensorInfo:
    """One tensor: its place and its size.

    ne       elements per dimension, always four, first fastest; n_dims of them are in the file
    offset   of its first byte in its own file
    n_bytes  without alignment padding; an upper bound where `exact` is false
    file     index into Header.files
    """

    __slots__ = ("exact", "file", "n_bytes", "n_dims", "name", "ne", "offset", "type")

    def __init__(
        self,
        name: str,
        type: str,
        ne: tuple[int, int, int, int],
        n_dims: int = 0,
        offset: int = 0,
        n_bytes: int = 0,
        file: int = 0,
        exact: bool = True,
    ) -> None:
        self.name = name
        self.type = type
        self.ne = ne
        self.n_dims = n_dims
        self.offset = offset
        self.n_bytes = n_bytes
        self.file = file
        self.exact = exact

    @property
    def n_elements(self) -> int:
        ne = self.ne
        return ne[0] * ne[1] * ne[2] * ne[3]

    def __eq__(self, other: object) -> bool:
        # by hand, as slots keep the thousands of a header small
        return isinstance(other, TensorInfo) and all(
            getattr(self, s) == getattr(other, s) for s in self.__slots__
        )

    def __hash__(self) -> int:
        return hash((self.name, self.type, self.ne, self.offset, self.file))

    def __repr__(self) -> str:
        return (
            f"TensorInfo({self.name!r}, {self.type!r}, {self.ne}, n_dims={self.n_dims}, "
            f"offset={self.offset}, n_bytes={self.n_bytes}, file={self.file}, exact={self.exact})"
        )


@dataclass(frozen=True)
class FileInfo:
    """One file of a model: its current length (None: a stream of unknown length) and the length
    that its header promises."""

    path: str
    size: int | None
    promised: int
    data_offset: int = 0

    @property
    def truncated(self) -> bool:
        return self.size is not None and self.size < self.promised


class Header:
    """A model's metadata and tensor list; for a split model those of all its parts together.

    metadata   key -> int, float, bool, str, tuple of numbers, or ArrayInfo for what is not kept;
               the first part's
    tensors    name -> TensorInfo, in file order
    files      one FileInfo per part
    notes      one-line warnings about the contents (tensor types this version does not know)
    """

    __slots__ = ("alignment", "files", "metadata", "notes", "tensors", "version")

    def __init__(
        self,
        version: int,
        alignment: int,
        metadata: dict[str, object],
        tensors: dict[str, TensorInfo],
        files: tuple[FileInfo, ...],
        notes: tuple[str, ...] = (),
    ) -> None:
        self.version = version
        self.alignment = alignment
        self.metadata = metadata
        self.tensors = tensors
        self.files = files
        self.notes = notes

    @property
    def data_offset(self) -> int:
        """Where the first file's tensor data starts."""
        return self.files[0].data_offset

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return sum(tensor.n_bytes for tensor in self.tensors.values())

    @property
    def truncated(self) -> bool:
        """A file is shorter than its header promises; a launch of it must fail."""
        return any(file.truncated for file in self.files)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user, one line each; incomplete files come first."""
        return (
            tuple(
                f"{file.path} is incomplete: {file.size} bytes, but its header promises "
                f"{file.promised}"
                for file in self.files
                if file.truncated
            )
            + self.notes
        )

    def __repr__(self) -> str:
        return (
            f"Header({self.files[0].path!r}, {len(self.metadata)} keys, {len(self.tensors)} "
            "tensors)"
        )
