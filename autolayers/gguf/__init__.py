"""GGUF headers: the metadata and tensor list of a model, without its tensor data.

    header = read_header("model.gguf")  # or any part of a split model, or an object with read(n)
    header.metadata["general.architecture"]         # "llama"
    header.tensors["blk.0.attn_q.weight"].n_bytes
    header.warnings                                 # for example: the file is incomplete

Vocabularies are skipped, not built; an ArrayInfo with their length stands in for them.
"""

from __future__ import annotations

from os import PathLike, fspath, fstat, readlink
from os.path import islink

from ..errors import ModelError
from ..files import opened
from ..ggml.types import BY_ID, BY_NAME, TYPES, GgmlType, n_bytes, row_size
from ..units import whole
from .header import ArrayInfo, FileInfo, Header, TensorInfo
from .reader import ReadWindow, join, read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .reader import Readable

__all__ = [
    "BY_ID",
    "BY_NAME",
    "TYPES",
    "ArrayInfo",
    "FileInfo",
    "GgmlType",
    "Header",
    "TensorInfo",
    "first_part",
    "join_parts",
    "n_bytes",
    "read_header",
    "read_part",
    "row_size",
    "split_of",
]


def read_header(source: str | PathLike[str] | Readable | list[Readable] | Header) -> Header:
    """Return the Header of a model.

    A path may name any part of a split model; the others are looked for in its directory. An object
    needs only `read(n)`; if it can also seek, skipped arrays cost nothing. Its attributes `name`
    (str) and `size` (int or None) are used if present. A split model without a path is a list of
    all its parts' objects, in order. A Header is returned as it is.

    Raises ModelError: one line that names the file and the problem.
    """
    if isinstance(source, (str, PathLike)):
        path = fspath(source)
        header = _read_one(path)
        index, count = split_of(header)
        if count < 2:
            return header
        suffix = f"-{index + 1:05d}-of-{count:05d}.gguf"
        # llama_split_prefix builds the other parts' names from this one's, so a renamed part has no
        # others
        if not path.endswith(suffix):
            raise ModelError(
                f"{path}: it is part {index + 1} of {count}, so its name must end with {suffix}"
            )
        prefix = path[: -len(suffix)]
        # all parts are read: tensors of any layer may be in any of them
        parts = []
        for i in range(count):
            part = f"{prefix}-{i + 1:05d}-of-{count:05d}.gguf"
            parts.append(
                header if i == index else _read_one(part, f"part {i + 1} of {count} of {path}")
            )
        return join_parts(parts)
    if isinstance(source, Header):
        return source
    return join_parts(
        [read_part(part) for part in (source if isinstance(source, list) else [source])]
    )


def _read_one(path: str, what: str = "") -> Header:
    try:
        # ReadWindow buffers; a second buffer would copy every byte once more
        with opened(path, buffering=0) as file:
            return read_file(ReadWindow(file, path, fstat(file.fileno()).st_size, True))
    except FileNotFoundError:
        if what:
            raise ModelError(f"{path}: {what} is missing") from None
        from .nearest import nearest_file

        if islink(path):
            raise ModelError(f"{path}: a link to {readlink(path)}, which is not there") from None
        near = nearest_file(path)
        raise ModelError(
            f"{path}: no such file{f'; did you mean {near}?' if near else ''}"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise ModelError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def read_part(source: Readable) -> Header:
    """Return the Header of one file, whether or not it is a part of a split model; see `split_of`
    and `join_parts`."""
    name = getattr(source, "name", None)
    size = getattr(source, "size", None)
    seekable = getattr(source, "seekable", None)
    can_seek = bool(seekable and seekable())
    if can_seek:
        # the size of a stream that has none to tell; counts in the header are checked against it
        size = source.seek(0, 2)  # type: ignore[attr-defined]
        source.seek(0)  # type: ignore[attr-defined]
    name = name if isinstance(name, str) else "<stream>"
    try:
        return read_file(ReadWindow(source, name, size, can_seek))
    except OSError as error:
        raise ModelError(f"{name}: {error.strerror or error}") from None


def first_part(path: str) -> str:
    """Return the name of a split model's first part, if `path` names another one; else "".

    >>> first_part("m-00002-of-00003.gguf")
    'm-00001-of-00003.gguf'
    """
    stem, _, rest = path.rpartition("-of-")
    # five digits each, as llama_split_path writes them
    dash, number, count = stem[-6:-5], stem[-5:], rest.removesuffix(".gguf")
    first = whole(number)
    is_part = dash == "-" and len(count) == 5 and whole(count) is not None and rest != count
    return f"{stem[:-5]}00001-of-{rest}" if is_part and first not in (None, 1) else ""


def split_of(header: Header) -> tuple[int, int]:
    """Return (index from 0, count) of a part; (0, 1) for a model in one file."""
    count = header.metadata.get("split.count", 0)
    # counted from 0 in the file, from 1 in its name; not read of a model in one file
    index = header.metadata.get("split.no", 0) if count not in (0, 1) else 0
    path = header.files[0].path
    if not isinstance(count, int) or not isinstance(index, int):
        raise ModelError(f"{path}: split.count or split.no is not a number")
    if count > 1 and not 0 <= index < count:
        raise ModelError(f"{path}: it calls itself part {index + 1} of {count}")
    return index, count


def join_parts(parts: list[Header]) -> Header:
    """Return the Header of a whole model from those of all its parts, in order. Raises
    ModelError."""
    name = parts[0].files[0].path
    index, count = split_of(parts[0])
    if count < 2 and len(parts) == 1:
        return parts[0]
    if count != len(parts):
        raise ModelError(
            f"{name}: it is part {index + 1} of {count}, but {len(parts)} parts were given"
        )
    # a list of objects has no names to check, only the parts' own numbers
    for i, part in enumerate(parts):
        if split_of(part)[0] != i:
            raise ModelError(
                f"{part.files[0].path}: it is part {split_of(part)[0] + 1}, expected part {i + 1} "
                f"of {count}"
            )
    return join(parts, name)
