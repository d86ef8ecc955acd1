"""ggml's tensor types: how many elements a block holds and how many bytes it takes.

Facts of `type_traits` in ggml/src/ggml.c, as modelled. The names are ggml's own spelling (`ggml_type_name`).
"""

from __future__ import annotations


class GgmlType:
    """One row: `blck_size` elements are stored in `type_size` bytes."""

    __slots__ = ("blck_size", "id", "name", "type_size")

    def __init__(self, id: int, name: str, blck_size: int, type_size: int) -> None:
        self.id = id
        self.name = name
        self.blck_size = blck_size
        self.type_size = type_size

    def __repr__(self) -> str:
        return f"GgmlType({self.id}, {self.name!r}, {self.blck_size}, {self.type_size})"


TYPES: tuple[GgmlType, ...] = tuple(GgmlType(*row) for row in (
    (0, "f32", 1, 4),
    (1, "f16", 1, 2),
    (2, "q4_0", 32, 18),
    (3, "q4_1", 32, 20),
    (6, "q5_0", 32, 22),
    (7, "q5_1", 32, 24),
    (8, "q8_0", 32, 34),
    (9, "q8_1", 32, 36),
    (10, "q2_K", 256, 84),
    (11, "q3_K", 256, 110),
    (12, "q4_K", 256, 144),
    (13, "q5_K", 256, 176),
    (14, "q6_K", 256, 210),
    (15, "q8_K", 256, 292),
    (16, "iq2_xxs", 256, 66),
    (17, "iq2_xs", 256, 74),
    (18, "iq3_xxs", 256, 98),
    (19, "iq1_s", 256, 50),
    (20, "iq4_nl", 32, 18),
    (21, "iq3_s", 256, 110),
    (22, "iq2_s", 256, 82),
    (23, "iq4_xs", 256, 136),
    (24, "i8", 1, 1),
    (25, "i16", 1, 2),
    (26, "i32", 1, 4),
    (27, "i64", 1, 8),
    (28, "f64", 1, 8),
    (29, "iq1_m", 256, 56),
    (30, "bf16", 1, 2),
    (34, "tq1_0", 256, 54),
    (35, "tq2_0", 256, 66),
    (39, "mxfp4", 32, 17),
    (40, "nvfp4", 64, 36),
    (41, "q1_0", 128, 18),
    (42, "q2_0", 64, 18),
))

BY_ID: dict[int, GgmlType] = {type_.id: type_ for type_ in TYPES}
BY_NAME: dict[str, GgmlType] = {type_.name: type_ for type_ in TYPES}

# ids that old files used and that llama.cpp no longer reads
REMOVED: dict[int, str] = {
    4: "q4_2", 5: "q4_3", 31: "q4_0_4_4", 32: "q4_0_4_8", 33: "q4_0_8_8",
    36: "iq4_nl_4_4", 37: "iq4_nl_4_8", 38: "iq4_nl_8_8",
}


def row_size(type_: str, ne0: int) -> int:
    """Bytes of one row of `ne0` elements (ggml_row_size); KeyError for a name that ggml does not know."""
    row = BY_NAME[type_]
    return ne0 // row.blck_size * row.type_size


def n_bytes(type_: str, ne: tuple[int, ...]) -> int:
    """Bytes of a contiguous tensor with `ne` elements per dimension, first dimension fastest
    (ggml_nbytes)."""
    size = row_size(type_, ne[0])
    for extent in ne[1:]:
        size *= extent
    return size
