"""ggml's tensor types: how many elements a block holds and how many bytes it takes (types.csv).

Facts of `type_traits` in ggml/src/ggml.c, as modelled. The names are ggml's own spelling
(`ggml_type_name`).
"""

from __future__ import annotations

from ..tables import rows


class GgmlType:
    """One row: `blck_size` elements are stored in `type_size` bytes, after `meta` bytes at the
    start of every row."""

    __slots__ = ("blck_size", "id", "meta", "name", "type_size")

    def __init__(self, id: int, name: str, blck_size: int, type_size: int, meta: int) -> None:
        self.id = id
        self.name = name
        self.blck_size = blck_size
        self.type_size = type_size
        self.meta = meta

    def __repr__(self) -> str:
        return f"GgmlType({self.id}, {self.name!r}, {self.blck_size}, {self.type_size})"


def _read(engine: str) -> tuple[GgmlType, ...]:
    return tuple(
        GgmlType(
            int(row["id"]),
            row["name"],
            int(row["blck_size"]),
            int(row["type_size"]),
            int(row["meta"]),
        )
        for row in rows("ggml/types.csv")
        if row["engine"] == engine
    )


TYPES = _read("")
IK_TYPES = _read("ik_llama.cpp")  # llama.cpp loads no file with one of them

BY_ID: dict[int, GgmlType] = {type_.id: type_ for type_ in (*TYPES, *IK_TYPES)}
BY_NAME: dict[str, GgmlType] = {type_.name: type_ for type_ in TYPES}  # llama.cpp's
IK_NAMES = frozenset([type_.name for type_ in IK_TYPES])
_ANY = {type_.name: type_ for type_ in (*TYPES, *IK_TYPES)}

# ids that old files used and that llama.cpp no longer reads
REMOVED: dict[int, str] = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}


def row_size(type_: str, ne0: int) -> int:
    """Return the bytes of one row of `ne0` elements (ggml_row_size); KeyError for a name that
    neither ggml nor ik_llama.cpp knows."""
    row = _ANY[type_]
    return row.meta + ne0 // row.blck_size * row.type_size


def is_quantised(type_: str) -> bool:
    """Return whether its elements are stored in blocks; KeyError as above."""
    row = _ANY[type_]
    return row.blck_size > 1 or row.meta > 0


def n_bytes(type_: str, ne: tuple[int, ...]) -> int:
    """Return the bytes of a contiguous tensor with `ne` elements per dimension, first dimension
    fastest (ggml_nbytes)."""
    size = row_size(type_, ne[0])
    for extent in ne[1:]:
        size *= extent
    return size
