"""A file made by a stranger would take all memory or minutes.

Files made to break a reader: each is refused with one line that names it, quickly and in little
memory.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from support import HEADERS, retyped

import autolayers
from autolayers import ModelError
from autolayers.gguf import ArrayInfo, Header, read_header

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
GIB = 1 << 30


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def pair(key: bytes, type_: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", type_) + value


def array(key: bytes, type_: int, n: int, body: bytes = b"") -> bytes:
    return pair(key, ARR, struct.pack("<IQ", type_, n) + body)


def tensor(
    name: bytes = b"t",
    ne: tuple[int, ...] = (32,),
    type_: int = 0,
    offset: int = 0,
    n_dims: int | None = None,
) -> bytes:
    return string(name) + struct.pack(
        f"<I{len(ne)}QiQ", len(ne) if n_dims is None else n_dims, *ne, type_, offset
    )


def gguf(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_pairs: int | None = None,
    data: int = 1 << 16,
) -> bytes:
    pairs, tensors = pairs or [], tensors or []
    return (
        magic
        + struct.pack(
            "<IQQ",
            version,
            len(tensors) if n_tensors is None else n_tensors,
            len(pairs) if n_pairs is None else n_pairs,
        )
        + b"".join(pairs)
        + b"".join(tensors)
        + bytes(data)
    )


REFUSED = {
    "nothing": (b"", "empty"),
    "3 bytes": (b"GGU", "only 3 bytes"),
    "magic alone": (b"GGUF", "ends inside its header, after 4 bytes"),
    "other magic": (gguf(magic=b"GGML"), "starts with b'GGML'"),
    "version 0": (gguf(version=0), "version 0"),
    "version 1": (gguf(version=1), "version 1 is no longer supported"),
    "version 4": (gguf(version=4), "version 4 is newer"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "no counts": (gguf()[:20], "ends inside its header"),
    "2**40 tensors": (gguf(n_tensors=2**40), "1099511627776 tensors"),
    "2**63 keys": (gguf(n_pairs=2**63), "9223372036854775808 metadata keys"),
    "more keys than bytes": (gguf(n_pairs=60_000, data=1000), "ends inside"),
    "more tensors than bytes": (gguf(n_tensors=60_000, data=1000), "ends inside"),
    "empty key": (gguf([pair(b"", U8, b"1")]), "key of 0 bytes"),
    "key beyond the end": (gguf([struct.pack("<Q", 60_000)], data=100, n_pairs=1), "ends inside"),
    "key of 2**62": (
        gguf([struct.pack("<Q", 2**62)], n_pairs=1),
        "key of 4611686018427387904 bytes",
    ),
    "duplicate key": (
        gguf([pair(b"a", U8, b"1"), pair(b"a", U8, b"1")]),
        "duplicate metadata key 'a'",
    ),
    "type 13": (gguf([pair(b"a", 13, b"")]), "key 'a' has the invalid type 13"),
    "type -1": (gguf([pair(b"a", 0xFFFFFFFF, b"")]), "invalid type"),
    "array of arrays": (gguf([array(b"a", ARR, 1)]), "array of the invalid type 9"),
    "array of type 99": (gguf([array(b"a", 99, 1)]), "array of the invalid type 99"),
    "value cut": (gguf([pair(b"a", U64, b"1")], data=0), "ends inside"),
    "string of 2**40": (
        gguf([pair(b"a", STR, struct.pack("<Q", 2**40))]),
        "string of 1099511627776 bytes",
    ),
    "string beyond the end": (gguf([pair(b"a", STR, struct.pack("<Q", GIB))]), "ends inside"),
    "array of 2**40 u8": (gguf([array(b"a", U8, 2**40)]), "1099511627776 elements"),
    "array of 2**30 u8": (gguf([array(b"a", U8, GIB)]), "ends inside"),
    "array of 2**30 f64": (gguf([array(b"a", F64, GIB)]), "ends inside"),
    "array of 2**30 strings": (gguf([array(b"a", STR, GIB)]), "1073741824 strings"),
    "array of 2**20 strings": (gguf([array(b"a", STR, 1 << 20)]), "ends inside"),
    "string in array beyond the end": (
        gguf([array(b"a", STR, 2, string(b"x") + struct.pack("<Q", 2**20))]),
        "ends inside",
    ),
    "string in array of 2**63": (
        gguf([array(b"a", STR, 2, string(b"x") + struct.pack("<Q", 2**63))]),
        "9223372036854775808",
    ),
    "string in array that wraps": (
        gguf(
            [array(b"a", STR, 600, string(b"x") * 300 + struct.pack("<Q", 2**64 - 8) + bytes(9000))]
        ),
        "18446744073709551608",
    ),
    "alignment 0": (
        gguf([pair(b"general.alignment", U32, struct.pack("<I", 0))]),
        "alignment 0 is not a power of 2",
    ),
    "alignment 3": (
        gguf([pair(b"general.alignment", U32, struct.pack("<I", 3))]),
        "alignment 3 is not a power of 2",
    ),
    "alignment as u64": (
        gguf([pair(b"general.alignment", U64, struct.pack("<Q", 32))]),
        "must be of type u32 but is u64",
    ),
    "alignment as string": (
        gguf([pair(b"general.alignment", STR, string(b"32"))]),
        "must be of type u32",
    ),
    "alignment as array": (
        gguf([array(b"general.alignment", U32, 1, struct.pack("<I", 32))]),
        "must be of type u32",
    ),
    "name of 64 bytes": (gguf(tensors=[tensor(b"n" * 64)]), "tensor name of 64 bytes"),
    "name of 2**63 bytes": (
        gguf(tensors=[struct.pack("<Q", 2**63)]),
        "tensor name of 9223372036854775808 bytes",
    ),
    "duplicate tensor": (gguf(tensors=[tensor(), tensor(offset=128)]), "duplicate tensor name 't'"),
    "5 dimensions": (gguf(tensors=[tensor(ne=(1, 1, 1, 1, 1))]), "5 dimensions"),
    "2**32 - 1 dimensions": (gguf(tensors=[tensor(n_dims=0xFFFFFFFF)]), "4294967295 dimensions"),
    "negative extent": (gguf(tensors=[tensor(ne=(2**64 - 32,))]), "impossible shape"),
    "negative second extent": (gguf(tensors=[tensor(ne=(0, 2**63))]), "impossible shape"),
    "elements overflow": (
        gguf(tensors=[tensor(ne=(2**32, 2**32, 2**32, 2**32))]),
        "impossible shape",
    ),
    "elements wrap to 0": (gguf(tensors=[tensor(ne=(2**32, 2**32, 1, 0))]), "impossible shape"),
    "bytes overflow": (
        gguf(tensors=[tensor(ne=(2**61,), type_=28), tensor(b"u", offset=0)]),
        "ends beyond|expected",
    ),
    "row not of whole blocks": (
        gguf(tensors=[tensor(ne=(33,), type_=8)]),
        "33 elements per row, not a multiple of 32",
    ),
    "removed type": (gguf(tensors=[tensor(type_=31)]), "q4_0_4_4, which llama.cpp no longer reads"),
    "negative type": (gguf(tensors=[tensor(type_=-1)]), "invalid type -1"),
    "first offset": (gguf(tensors=[tensor(offset=32)]), "offset 32, expected 0"),
    "overlap": (
        gguf(tensors=[tensor(), tensor(b"u", offset=96)]),
        "'u' has offset 96, expected 128",
    ),
    "gap": (gguf(tensors=[tensor(), tensor(b"u", offset=160)]), "'u' has offset 160, expected 128"),
    "offset beyond 2**64": (
        gguf(tensors=[tensor(ne=(2**62,), type_=0), tensor(b"u", (2**62,), 0, 2**64 - 32)]),
        "beyond|expected",
    ),
    "unknown type without space": (
        gguf(tensors=[tensor(type_=77), tensor(b"u", offset=0)]),
        "no space",
    ),
    "tensor infos cut": (gguf(tensors=[tensor()], data=0)[:-3], "ends inside"),
    "second tensor missing": (gguf(tensors=[tensor()], n_tensors=2, data=0), "ends inside"),
}


class Stream:
    """Neither a size nor a way to seek."""

    def __init__(self, data: bytes) -> None:
        self.read = io.BytesIO(data).read


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    data, reason = REFUSED[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=reason) as error:
        read_header(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    with pytest.raises(ModelError):
        read_header(Stream(data))


def read(data: bytes) -> Header:
    return read_header(io.BytesIO(data))


def test_values_at_the_limits_are_accepted() -> None:
    header = read(
        gguf(
            [
                array(b"empty", F32, 0),
                array(b"none", STR, 0),
                pair(b"bad utf-8", STR, string(b"\xff\xfe")),
                pair(b"\xff", BOOL, b"\x02"),
                array(b"kept", I16, 4096, bytes(8192)),
                array(b"long", I16, 4097, bytes(8194)),
            ],
            [tensor(b"n" * 63, ()), tensor(b"", (0, 5), offset=32)],
        )
    )
    assert header.metadata["empty"] == ()
    assert header.metadata["none"] == ArrayInfo("str", 0)
    assert header.metadata["bad utf-8"] == "\\xff\\xfe"
    assert header.metadata["\\xff"] is True
    assert header.metadata["kept"] == (0,) * 4096
    assert header.metadata["long"] == ArrayInfo("i16", 4097)
    scalar, empty = header.tensors.values()
    assert (scalar.ne, scalar.n_dims, scalar.n_bytes) == ((1, 1, 1, 1), 0, 4)
    assert (empty.ne, empty.n_bytes) == ((0, 5, 1, 1), 0)


@pytest.mark.parametrize("make", [io.BytesIO, Stream])
def test_strings_longer_than_a_buffer_lose_nothing_behind_them(
    make: Callable[[bytes], io.BytesIO],
) -> None:
    """In an array and as a value: what follows them is read from the right place."""
    texts = [b"a" * 5, b"b" * 300_000, b"", b"c" * (1 << 18), b"d" * (3 << 20), b"e"] * 2
    header = read_header(
        make(
            gguf(
                [
                    array(b"list", STR, len(texts), b"".join(map(string, texts))),
                    pair(b"huge", STR, string(b"f" * (2 << 20))),
                    pair(b"large", STR, string(b"g" * (1 << 20))),
                    pair(b"last", U32, struct.pack("<I", 42)),
                ],
                [tensor()],
            )
        )
    )
    assert header.metadata == {
        "list": ArrayInfo("str", 12),
        "huge": ArrayInfo("u8", 2 << 20),
        "large": "g" * (1 << 20),
        "last": 42,
    }
    assert header.tensors["t"].n_bytes == 128


def test_a_file_without_tensors_is_read() -> None:
    header = read(gguf([pair(b"general.architecture", STR, string(b"llama"))]))
    assert header.tensors == {}
    assert header.files[0].promised == header.data_offset
    assert header.n_bytes == 0


def test_unknown_type_takes_the_space_up_to_its_successor() -> None:
    header = read(gguf(tensors=[tensor(b"new", (256, 4), 77), tensor(b"known", (32,), 0, 640)]))
    new, known = header.tensors.values()
    assert (new.type, new.n_bytes, new.exact) == ("type_77", 640, False)
    assert (known.n_bytes, known.exact) == (128, True)
    assert header.warnings == (
        "<stream>: 1 tensor of a type newer than autolayers knows (type_77 "
        "in 'new'), "
        "counted with all the space it may take",
    )


def test_unknown_type_at_the_end_takes_the_rest_of_the_file() -> None:
    data = gguf(tensors=[tensor(b"new", (256,), 77)], data=5000)
    header = read(data)
    assert header.tensors["new"].n_bytes == len(data) - header.data_offset


def test_unknown_type_without_its_data_is_counted_as_the_widest() -> None:
    header = read_header(Stream(gguf(tensors=[tensor(b"new", (256,), 77)], data=0)))
    assert header.tensors["new"].n_bytes == 256 * 8


@pytest.mark.parametrize("count", ["0", "x"])
def test_a_split_count_of_the_wrong_type_is_refused(count: str) -> None:
    with pytest.raises(ModelError, match="not a number"):
        read(gguf([pair(b"split.count", STR, string(count.encode()))]))


def test_a_part_beyond_the_count_is_refused() -> None:
    with pytest.raises(ModelError, match="part 4 of 3"):
        read(
            gguf(
                [
                    pair(b"split.count", U16, struct.pack("<H", 3)),
                    pair(b"split.no", U16, struct.pack("<H", 3)),
                ]
            )
        )


def part(no: int, tensors: list[bytes], total: int = 2) -> io.BytesIO:
    return io.BytesIO(
        gguf(
            [
                pair(b"split.count", U16, struct.pack("<H", 2)),
                pair(b"split.no", U16, struct.pack("<H", no)),
                pair(b"split.tensors.count", I32, struct.pack("<i", total)),
            ],
            tensors,
        )
    )


def test_parts_that_do_not_belong_together() -> None:
    assert len(read_header([part(0, [tensor(b"a")]), part(1, [tensor(b"b")])]).tensors) == 2
    with pytest.raises(ModelError, match="tensor 'a' is in another part too"):
        read_header([part(0, [tensor(b"a")]), part(1, [tensor(b"a")])])
    with pytest.raises(ModelError, match="3 tensors expected in all parts, but 2 found"):
        read_header([part(0, [tensor(b"a")], 3), part(1, [tensor(b"b")], 3)])


def test_an_object_that_fails() -> None:
    class Broken:
        name = "remote.gguf"

        def read(self, n: int) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(ModelError, match=r"remote\.gguf: Input/output error"):
        read_header(Broken())


def sparse(path: Path, head: bytes, size: int) -> None:
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)


def many_empty_strings(path: Path) -> None:
    sparse(path, gguf([array(b"a", STR, 1 << 22)], n_pairs=1, data=0), 64 << 30)


def strings_of_a_mebibyte(path: Path) -> None:
    """Each one is skipped, so that each needs a read of its own."""
    with open(path, "wb") as file:
        file.write(gguf([array(b"a", STR, 1 << 22)], n_pairs=1, data=0))
        for _ in range(1000):
            file.write(struct.pack("<Q", (1 << 20) + 1))
            file.seek((1 << 20) + 1, 1)
        file.truncate(64 << 30)


def longest_strings(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(gguf(n_pairs=16, data=0))
        for i in range(16):
            file.write(pair(b"%d" % i, STR, struct.pack("<Q", GIB)))
            file.seek(GIB, 1)
        file.truncate(64 << 30)


def longest_arrays(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(gguf(n_pairs=4, data=0))
        for i in range(4):
            file.write(array(b"%d" % i, F64, GIB))
            file.seek(8 * GIB, 1)
        file.truncate(64 << 30)


def most_keys(path: Path) -> None:
    path.write_bytes(gguf([pair(b"key.%05d" % i, U64, b"\xff" * 8) for i in range(1 << 16)]))


def fattest_keys(path: Path) -> None:
    """One astral character makes Python spend 4 bytes on each of the others."""
    body = string("🦙".encode() + b"k" * 65_000)
    with open(path, "wb") as file:
        file.write(gguf(n_pairs=4000, data=0))
        for i in range(4000):
            file.write(body[:16] + b"%05d" % i + body[21:] + struct.pack("<IB", U8, 1))
        file.write(bytes(1 << 16))


def most_kept_numbers(path: Path) -> None:
    body = struct.pack("<4096d", *map(float, range(4096)))
    with open(path, "wb") as file:
        file.write(gguf(n_pairs=6000, data=0))
        for i in range(6000):
            file.write(array(b"%d" % i, F64, 4096, body))


def most_kept_text(path: Path) -> None:
    body = string("🦙".encode() + b"x" * ((1 << 20) - 4))
    with open(path, "wb") as file:
        file.write(gguf(n_pairs=200, data=0))
        for i in range(200):
            file.write(pair(b"%d" % i, STR, body))


def most_tensors(path: Path) -> None:
    path.write_bytes(
        gguf(tensors=[tensor(b"%063d" % i, (32, 1, 1, 1), 0, 128 * i) for i in range(1 << 16)])
    )


HEAVY: tuple[Callable[[Path], None], ...] = (
    many_empty_strings,
    strings_of_a_mebibyte,
    longest_strings,
    longest_arrays,
    most_keys,
    fattest_keys,
    most_kept_numbers,
    most_kept_text,
    most_tensors,
)


def test_experts_of_an_unknown_type_are_planned_with(tmp_path: Path) -> None:
    """Those in RAM may be cached on a GPU, by the size that the file gives them."""
    name = "qwen3-30b-a3b-q4_k_m"
    words = ["-ngl", "99", "-cmoe", "-np", "1", "--gpu", "12GiB", "--ram", "64GiB"]
    words += ["--moe-cache-mib", "3000"]
    new, old = (
        autolayers.plan(path, words)
        for path in (retyped(name, "q4_K", tmp_path), HEADERS / f"{name}.gguf")
    )
    # at most the padding of rows of f32, for each kind of slots
    assert 0 <= new.devices[0].context - old.devices[0].context < 8192
    assert new.fits and not new.exact
