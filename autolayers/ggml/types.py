"""ggml's tensor types: how many elements a block holds and how many bytes it takes.

Facts of `type_traits` in ggml/src/ggml.c, as modelled. The names are ggml's own spelling
(`ggml_type_name`).
"""

from __future__ import annotations


class GgmlType:
    """One row: `blck_size` elements are stored in `type_size` bytes, after `meta` bytes at the
    start of every row."""

    __slots__ = ("blck_size", "id", "meta", "name", "type_size")

    def __init__(self, id: int, name: str, blck_size: int, type_size: int, meta: int = 0) -> None:
        self.id = id
        self.name = name
        self.blck_size = blck_size
        self.type_size = type_size
        self.meta = meta

    def __repr__(self) -> str:
        return f"GgmlType({self.id}, {self.name!r}, {self.blck_size}, {self.type_size})"


TYPES: tuple[GgmlType, ...] = tuple(
    GgmlType(*row)
    for row in (
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
        (43, "f8_e4m3", 1, 1),
    )
)

# of ik_llama.cpp alone (ggml.h, ggml-common.h; 8337e4cd of 2026-08-15): llama.cpp loads no file
# with one of them
IK_TYPES: tuple[GgmlType, ...] = tuple(
    GgmlType(*row)
    for row in (
        (133, "q6_0", 32, 26, 0),
        (134, "iq1_bn", 64, 13, 2),
        (135, "iq2_bn", 64, 16, 4),
        (137, "iq2_k", 256, 76, 0),
        (138, "iq3_k", 256, 110, 0),
        (139, "iq4_k", 256, 144, 0),
        (140, "iq5_k", 256, 176, 0),
        (141, "iq6_k", 256, 212, 0),
        (144, "iq4_ks", 256, 136, 4),
        (145, "iq2_ks", 256, 70, 2),
        (146, "iq4_kss", 256, 128, 4),
        (151, "q8_KV", 32, 32, 8),
        (152, "iq5_ks", 256, 168, 4),
        (153, "iq2_kt", 256, 68, 4),
        (154, "iq3_kt", 256, 100, 4),
        (155, "iq4_kt", 256, 128, 4),
        (156, "iq3_ks", 256, 102, 2),
        (157, "iq2_kl", 256, 86, 2),
        (158, "iq1_kt", 256, 56, 4),
        (202, "q4_0_r8", 32, 18, 0),
        (206, "q5_0_r4", 32, 22, 0),
        (208, "q8_0_r8", 32, 34, 0),
        (210, "q2_k_r4", 256, 84, 0),
        (211, "q3_k_r4", 256, 110, 0),
        (212, "q4_k_r4", 256, 144, 0),
        (213, "q5_k_r4", 256, 176, 0),
        (214, "q6_k_r4", 256, 210, 0),
        (216, "iq2_xxs_r4", 256, 66, 0),
        (217, "iq2_xs_r4", 256, 74, 0),
        (218, "iq3_xxs_r4", 256, 98, 0),
        (219, "iq1_s_r4", 32, 6, 2),
        (220, "iq4_nl_r4", 32, 18, 0),
        (221, "iq3_s_r4", 256, 110, 0),
        (222, "iq2_s_r4", 256, 82, 0),
        (223, "iq4_xs_r8", 256, 136, 0),
        (229, "iq1_m_r4", 32, 7, 2),
        (230, "bf16_r16", 1, 2, 0),
        (233, "q6_0_r4", 32, 26, 0),
        (335, "iq2_bn_r4", 64, 16, 4),
        (337, "iq2_k_r4", 256, 76, 0),
        (338, "iq3_k_r4", 256, 110, 0),
        (339, "iq4_k_r4", 256, 144, 0),
        (340, "iq5_k_r4", 256, 176, 0),
        (344, "iq4_ks_r4", 256, 136, 4),
        (352, "iq5_ks_r4", 256, 168, 4),
        (353, "mxfp4_r8", 32, 17, 0),
        (397, "q8_k_r16", 256, 258, 0),
        (398, "q8_KV_r8", 32, 32, 4),
        (399, "q8_k_r8", 256, 258, 0),
    )
)

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
