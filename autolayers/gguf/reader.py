"""GGUF: magic, version, counts, key-value pairs, tensor infos; then padding and tensor data, which
is never read. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Whatever is
refused here, and every limit below without another reason, is what llama.cpp's
gguf_init_from_reader (ggml/src/gguf.cpp) and llama_model_loader (src/llama-model-loader.cpp)
refuse, as modelled."""

from __future__ import annotations

from struct import Struct, unpack_from
from struct import error as StructError

from ..errors import ModelError
from ..ggml import types
from ..quoting import printable
from .header import ArrayInfo, FileInfo, Header, TensorInfo, with_type
from .strings import skip_strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    class Readable(Protocol):
        def read(self, n: int, /) -> bytes: ...


_MAX_STRING = 1 << 30
_MAX_ELEMENTS = 1 << 30
_MAX_NAME = 64  # GGML_MAX_NAME, with its terminating zero
ALIGNMENT = "general.alignment"
_INT64_MAX = (1 << 63) - 1
_SIZE_MAX = (1 << 64) - 1

_LONGEST_INFO = 8 + _MAX_NAME - 1 + 4 + 4 * 8 + 4 + 8  # bytes of a tensor info

# Our own limits, far above any model, so that no file costs more than a second or 200 MiB.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 16
_MAX_KEY = (1 << 16) - 1  # the format's own limit, which llama.cpp does not check
_MAX_KEPT_STRING = 1 << 20
# arrays with an entry per layer are kept, those with one per token are not
_MAX_KEPT_ARRAY = 1 << 12
_MAX_KEPT = 64 << 20  # bytes that all kept keys and values may take as Python objects
_MAX_STRINGS = 1 << 22  # entries of all string arrays
_MAX_READ = 256 << 20  # bytes that must be examined one after the other

# larger buffers are allocated by the system each time: 10 ms more for 262,144 tokens
CHUNK = 1 << 18

# in the order of gguf_type, from 0; no code: not of a fixed size
_SCALARS = (
    ("u8", "B"),
    ("i8", "b"),
    ("u16", "H"),
    ("i16", "h"),
    ("u32", "I"),
    ("i32", "i"),
    ("f32", "f"),
    ("bool", "?"),
    ("str", ""),
    ("arr", ""),
    ("u64", "Q"),
    ("i64", "q"),
    ("f64", "d"),
)
_NAME = tuple(name for name, _ in _SCALARS)
FORMAT = tuple(Struct("<" + code) if code else None for _, code in _SCALARS)
# GGUF_TYPE_STRING, GGUF_TYPE_ARRAY
STRING, ARRAY = 8, 9

_U32 = Struct("<I").unpack_from
_U64 = Struct("<Q").unpack_from
_TYPE_OFFSET = Struct("<iQ").unpack_from
_DIMS = tuple(Struct(f"<{n}Q").unpack_from for n in range(5))


class ReadWindow:
    """The part of a source being examined: `buf[pos:]` is the unread rest."""

    __slots__ = ("base", "buf", "name", "pos", "read_bytes", "seekable", "size", "source")

    def __init__(self, source: Readable, name: str, size: int | None, seekable: bool) -> None:
        self.source = source
        self.name = name
        self.size = size
        self.seekable = seekable
        self.buf = b""
        self.pos = 0
        self.base = 0  # offset of buf[0] in the source
        self.read_bytes = 0

    def error(self, reason: str) -> ModelError:
        return ModelError(f"{self.name}: {reason}")

    def end(self) -> ModelError:
        here = self.base + len(self.buf) if self.size is None else self.size
        return self.error(f"the file ends inside its header, after {here} bytes")

    def tell(self) -> int:
        return self.base + self.pos

    def claim(self, n: int) -> None:
        """Refuse impossible counts before anything is allocated for them."""
        # a header can claim 2**64 entries in eight bytes
        if self.size is not None and n > self.size - self.base - self.pos:
            raise self.end()

    def need(self, n: int) -> None:
        """Make `n` bytes from `pos` on available."""
        if n > len(self.buf) - self.pos:
            self.claim(n)
            if not self.fill(n):
                raise self.end()

    def fill(self, n: int) -> bool:
        """Try to make bytes available; return False at the end of the source."""
        # the unread rest moves to the front
        parts = [self.buf[self.pos :]]
        have = len(parts[0])
        self.base += self.pos
        self.pos = 0
        while have < n:
            # at least a chunk: most needs are of a few bytes
            part = self.source.read(max(n - have, CHUNK))
            if not part:
                break
            parts.append(part)
            have += len(part)
            self.read_bytes += len(part)
            if self.read_bytes > _MAX_READ:
                raise self.error(
                    f"the header is larger than {_MAX_READ >> 20} MiB, which no model's is"
                )
        self.buf = b"".join(parts)
        return have >= n

    def skip(self, n: int) -> None:
        self.claim(n)
        here = len(self.buf) - self.pos
        if n <= here:
            self.pos += n
        # skipped bytes are never read: a vocabulary of numbers costs nothing
        elif self.seekable:
            self.base += self.pos + n
            self.buf, self.pos = b"", 0
            self.source.seek(self.base)  # type: ignore[attr-defined]
        else:
            self.pos += here
            n -= here
            while n:
                step = min(n, CHUNK)
                self.need(step)
                self.pos += step
                n -= step

    def u32(self) -> int:
        self.need(4)
        value: int = _U32(self.buf, self.pos)[0]
        self.pos += 4
        return value

    def u64(self) -> int:
        self.need(8)
        value: int = _U64(self.buf, self.pos)[0]
        self.pos += 8
        return value

    def label(self, n: int) -> str:
        """Return a name as text, with escapes for what a terminal would not print."""
        return printable(self.text(n))

    def text(self, n: int) -> str:
        self.need(n)
        value = self.buf[self.pos : self.pos + n].decode("utf-8", "backslashreplace")
        self.pos += n
        return value


def read_file(window: ReadWindow) -> Header:
    """Return the Header of this one file, whether or not others belong to it."""
    version, n_tensors, n_keys = read_start(window)
    reader = _MetadataReader(window)
    for _ in range(n_keys):
        reader.read_pair()
    metadata = reader.metadata
    alignment = metadata.get(ALIGNMENT, 32)
    if not isinstance(alignment, int):
        raise window.error(f"{ALIGNMENT} must be of type u32")
    if alignment <= 0 or alignment & (alignment - 1):
        raise window.error(f"alignment {alignment} is not a power of 2")
    return _read_tensors(window, version, alignment, metadata, n_tensors)


_OTHERS = (  # how files begin that are often found instead
    (b"vers", "a Git LFS pointer instead of it (`git lfs pull` fetches the file)"),
    (b"<", "a web page, perhaps a login or the page about the file"),
    (
        b"PK\x03\x04",
        "an archive, as PyTorch saves models: convert_hf_to_gguf.py of llama.cpp converts them",
    ),
    (b"lmgg", "in a format before GGUF: download the model again"),
    (b"fmgg", "in a format before GGUF: download the model again"),
    (b"tjgg", "in a format before GGUF: download the model again"),
)


def read_start(window: ReadWindow) -> tuple[int, int, int]:
    if not window.fill(4) or window.buf[:4] != b"GGUF":
        raise window.error(f"not a GGUF file: {_of_no_gguf(window.buf)}")
    window.pos = 4
    version = window.u32()
    # refuse a version that llama.cpp does not read
    if version == 0:
        raise window.error("GGUF version 0 does not exist")
    # 3 in the other byte order is 0x03000000
    if version & 0xFFFF == 0:
        raise window.error("big-endian GGUF; llama.cpp on this machine needs a little-endian one")
    if version == 1:
        raise window.error(
            "GGUF version 1 is no longer supported by llama.cpp; get a newer conversion of the "
            "model"
        )
    if version > 3:
        raise window.error(
            f"GGUF version {version} is newer than version 3, the latest known; update autolayers"
        )
    # version 1 had 32 bits here; _check_version has refused it
    n_tensors, n_keys = window.u64(), window.u64()
    if n_tensors > _MAX_TENSORS:
        raise window.error(f"{n_tensors} tensors, more than the {_MAX_TENSORS} any model has")
    if n_keys > _MAX_KEYS:
        raise window.error(f"{n_keys} metadata keys, more than the {_MAX_KEYS} any model has")
    window.claim(n_tensors * 24 + n_keys * 13)  # the size of the shortest possible entries
    return version, n_tensors, n_keys


def _of_no_gguf(start: bytes | bytearray) -> str:
    """Say what a file is that does not start with GGUF."""
    if len(start) < 4:
        return f"only {len(start)} bytes" if start else "it is empty"
    for magic, what in _OTHERS:
        if start[:4].startswith(magic):
            return what
    # eight bytes of length, then JSON
    if start[8:10] == b'{"':
        return "safetensors, which convert_hf_to_gguf.py of llama.cpp converts"
    return f"it starts with {start[:4]!r}"


class _MetadataReader:
    """The metadata read so far, and what it takes."""

    def __init__(self, window: ReadWindow) -> None:
        self.window = window
        self.metadata: dict[str, object] = {}
        self.kept_bytes = 0  # of all keys and values, as Python objects
        self.strings = 0  # entries of all string arrays

    def read_pair(self) -> None:
        """Read a key and its value."""
        window = self.window
        n = window.u64()
        if not 0 < n <= _MAX_KEY:
            raise window.error(f"metadata key of {n} bytes")
        key = window.label(n)
        # gguf_init_from_reader refuses it too
        if key in self.metadata:
            raise window.error(f"duplicate metadata key {key[:80]!r}")
        type_ = window.u32()
        # a dictionary's entry and a key of wide characters, rounded up
        self.kept_bytes += 200 + 4 * n
        if type_ == ARRAY:
            self.metadata[key] = self.array(key)
        elif type_ == STRING:
            self.metadata[key] = self.string(key)
        else:
            self.metadata[key] = self.number(key, type_)
        if self.kept_bytes > _MAX_KEPT:
            raise window.error(
                f"more than {_MAX_KEPT >> 20} MiB of metadata outside the vocabulary"
            )

    def array(self, key: str) -> object:
        """Return the numbers of an array; of a long one and of strings, only how many there are."""
        window = self.window
        type_, n = window.u32(), window.u64()
        if n > _MAX_ELEMENTS:
            raise window.error(
                f"metadata key {key[:80]!r} has {n} elements, more than llama.cpp's {_MAX_ELEMENTS}"
            )
        if type_ == STRING:
            return self.string_array(key, n)
        format_ = FORMAT[type_] if type_ < len(FORMAT) else None
        if format_ is None:
            raise window.error(f"metadata key {key[:80]!r} is an array of the invalid type {type_}")
        # its length is all that anybody asks for
        if n > _MAX_KEPT_ARRAY:
            window.skip(n * format_.size)
            return ArrayInfo(_NAME[type_], n)
        size = n * format_.size
        window.need(size)
        # one call for the whole array, as layers may have hundreds of values
        values = unpack_from(f"<{n}{format_.format[1:]}", window.buf, window.pos)
        window.pos += size
        self.kept_bytes += 40 * n
        return with_type(values, f"arr[{_NAME[type_]}]")

    def string_array(self, key: str, n: int) -> ArrayInfo:
        """Skip `n` strings."""
        self.strings += n
        if self.strings > _MAX_STRINGS:
            raise self.window.error(
                f"metadata key {key[:80]!r} has {n} strings, more than any vocabulary"
            )
        # each string has at least its length
        self.window.claim(n * 8)
        skip_array(self.window, n, key)
        return ArrayInfo("str", n)

    def string(self, key: str) -> object:
        """Return a text; of a very long one, only its length."""
        window = self.window
        n = window.u64()
        if n > _MAX_STRING:
            raise window.error(
                f"metadata key {key[:80]!r} has a string of {n} bytes, more than llama.cpp's "
                f"{_MAX_STRING}"
            )
        if n > _MAX_KEPT_STRING:
            window.skip(n)
            return ArrayInfo("u8", n)
        self.kept_bytes += 4 * n
        return window.text(n)

    def number(self, key: str, type_: int) -> object:
        """Return a number or a truth value."""
        window = self.window
        format_ = FORMAT[type_] if type_ < len(FORMAT) else None
        if format_ is None:
            raise window.error(f"metadata key {key[:80]!r} has the invalid type {type_}")
        # gguf_init_from_reader insists on u32 for this key
        if key == ALIGNMENT and type_ != 4:
            raise window.error(f"{ALIGNMENT} must be of type u32 but is {_NAME[type_]}")
        window.need(format_.size)
        value: object = format_.unpack_from(window.buf, window.pos)[0]
        window.pos += format_.size
        return with_type(value, _NAME[type_])


def skip_array(window: ReadWindow, n: int, key: str) -> None:
    while True:
        window.pos, n = skip_strings(window.buf, window.pos, n)
        if n == 0:
            return
        # The next string is incomplete in the window (or n is left because its length is).
        window.need(8)
        length: int = _U64(window.buf, window.pos)[0]
        if length > _MAX_STRING:
            raise window.error(
                f"metadata key {key[:80]!r} has a string of {length} bytes, more than llama.cpp's "
                f"{_MAX_STRING}"
            )
        # skipped by itself: it would make the window as large as it is
        if length > CHUNK:
            window.pos += 8
            window.skip(length)
            n -= 1
        else:
            window.need(8 + length)


def _read_tensors(
    window: ReadWindow, version: int, alignment: int, metadata: dict[str, object], n_tensors: int
) -> Header:
    """Read the tensors' names, shapes, types and offsets, and check them as llama.cpp does."""
    tensors: dict[str, TensorInfo] = {}
    buf, pos = window.buf, window.pos
    try:
        for _ in range(n_tensors):
            # one refill for many tensors; locals, because this loop is most of a header's time
            if len(buf) - pos < _LONGEST_INFO:
                window.pos = pos
                window.fill(_LONGEST_INFO)
                buf, pos = window.buf, window.pos
            n = _U64(buf, pos)[0]
            if n >= _MAX_NAME:
                raise window.error(
                    f"tensor name of {n} bytes, longer than llama.cpp's {_MAX_NAME - 1}"
                )
            pos += 8 + n
            name = printable(buf[pos - n : pos].decode("utf-8", "backslashreplace"))
            if name in tensors:
                raise window.error(f"duplicate tensor name {name!r}")
            n_dims = _U32(buf, pos)[0]
            if n_dims > 4:
                raise window.error(f"tensor {name!r} has {n_dims} dimensions, more than 4")
            ne = (*_DIMS[n_dims](buf, pos + 4), 1, 1, 1, 1)[:4]
            pos += 4 + 8 * n_dims
            type_id, offset = _TYPE_OFFSET(buf, pos)
            pos += 12
            tensors[name] = _tensor(window, name, type_id, ne, n_dims, offset)
    except StructError:
        raise window.end() from None
    window.pos = pos
    data_offset = window.tell()
    if n_tensors:
        # ggml pads the header, if tensors follow
        data_offset = -(-data_offset // alignment) * alignment
    end = _place(window, data_offset, alignment, list(tensors.values()))
    file = FileInfo(window.name, window.size, end, data_offset)
    # A note if there are tensors of unknown types.
    unknown = [tensor for tensor in tensors.values() if not tensor.exact]
    notes: tuple[str, ...] = ()
    if unknown:
        some = f"{len(unknown)} tensors" if len(unknown) > 1 else "1 tensor"
        first, they = unknown[0], "they" if len(unknown) > 1 else "it"
        notes = (
            f"{window.name}: {some} of a type newer than autolayers knows ({first.type} in "
            f"{first.name!r}), counted with all the space {they} may take",
        )
    return Header(version, alignment, metadata, tensors, (file,), notes)


def _tensor(
    window: ReadWindow,
    name: str,
    type_id: int,
    ne: tuple[int, int, int, int],
    n_dims: int,
    offset: int,
) -> TensorInfo:
    """Return a tensor with its size; 0 of an unknown type, whose size its successor tells."""
    n_elements = 1
    for extent in ne:
        n_elements *= extent
        if extent > _INT64_MAX or n_elements > _INT64_MAX:
            raise window.error(f"tensor {name!r} has an impossible shape {list(ne)}")
    # a newer file: planned with a bound instead of refused
    type_ = types.BY_ID.get(type_id)
    if type_ is None:
        # Raise ModelError if an unknown type is none that a newer llama.cpp may have.
        if type_id in types.REMOVED:
            raise window.error(
                f"tensor {name!r} has the type {types.REMOVED[type_id]}, which llama.cpp no longer "
                "reads; get a newer conversion of the model"
            )
        if type_id < 0:
            raise window.error(f"tensor {name!r} has the invalid type {type_id}")
        return TensorInfo(name, f"type_{type_id}", ne, n_dims, offset, 0, 0, False)
    if ne[0] % type_.blck_size:
        raise window.error(
            f"tensor {name!r} of type {type_.name} has {ne[0]} elements per row, not a "
            f"multiple of {type_.blck_size}"
        )
    # ik_llama.cpp's types may have a scale at the start of each row (meta)
    size = n_elements // type_.blck_size * type_.type_size
    if type_.meta and ne[0]:
        size += n_elements // ne[0] * type_.meta
    return TensorInfo(name, type_.name, ne, n_dims, offset, size)


def _place(window: ReadWindow, data_offset: int, alignment: int, tensors: list[TensorInfo]) -> int:
    """Make offsets absolute and check that each tensor follows its predecessor; return the end of
    the last one."""
    expected = end = 0
    for i, tensor in enumerate(tensors):
        # gguf_init_from_reader accepts no gaps other than padding
        if tensor.offset != expected:
            raise window.error(
                f"tensor {tensor.name!r} has offset {tensor.offset}, expected {expected}"
            )
        if not tensor.exact:
            tensor.n_bytes = _bound(
                window, data_offset, tensor, tensors[i + 1] if i + 1 < len(tensors) else None
            )
        end = expected + tensor.n_bytes
        # the next tensor begins at the next multiple
        expected = -(-end // alignment) * alignment
        if expected > _SIZE_MAX:
            raise window.error(f"tensor {tensor.name!r} ends beyond 2**64 bytes")
        tensor.offset += data_offset
    return data_offset + end


def _bound(
    window: ReadWindow, data_offset: int, tensor: TensorInfo, following: TensorInfo | None
) -> int:
    """Return the most bytes that a tensor of unknown type can have: up to the next tensor, or up to
    the file's end."""
    if following is not None:
        space = following.offset - tensor.offset
    elif window.size is not None and window.size > data_offset + tensor.offset:
        space = window.size - data_offset - tensor.offset
    else:
        space = tensor.n_elements * 8  # no ggml type takes more than 8 bytes per element
    if space < 0 or (space == 0 and tensor.n_elements):
        raise window.error(
            f"tensor {tensor.name!r} of the unknown {tensor.type} has no space before its successor"
        )
    return space


def join(parts: Iterable[Header], name: str) -> Header:
    """Return one Header from the parts of a split model, given in order and complete."""
    parts = list(parts)
    first = parts[0]
    tensors: dict[str, TensorInfo] = {}
    for index, part in enumerate(parts):
        for tensor in part.tensors.values():
            if tensor.name in tensors:
                raise ModelError(
                    f"{part.files[0].path}: tensor {tensor.name!r} is in another part too"
                )
            tensor.file = index
            tensors[tensor.name] = tensor
    # written by llama-gguf-split, and checked by llama_model_loader
    promised = first.metadata.get("split.tensors.count")
    if promised != len(tensors):
        raise ModelError(
            f"{name}: {promised} tensors expected in all parts, but {len(tensors)} found"
        )
    return Header(
        first.version,
        first.alignment,
        first.metadata,
        tensors,
        tuple(part.files[0] for part in parts),
        tuple(note for part in parts for note in part.notes),
    )
