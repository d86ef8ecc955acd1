"""Vocabularies would be read wrongly, for a faster start.

The fast walk over an array of strings reads exactly what the plain one reads.
"""

from __future__ import annotations

import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st

from autolayers.gguf.strings import skip_strings, step_strings


def string(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def model(buf: bytes, pos: int, n: int) -> tuple[int, int]:
    """The format's own words, by slicing."""
    while n:
        prefix = buf[pos : pos + 8]
        if len(prefix) < 8 or len(buf) - pos - 8 < int.from_bytes(prefix, "little"):
            return pos, n
        pos += 8 + int.from_bytes(prefix, "little")
        n -= 1
    return pos, n


TEXTS = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        (
            b"",
            b"\0" * 7,
            b"\0" * 8,
            b"\x01" + b"\0" * 7,
            string(b"inner"),
            string(b"", 2**64 - 8),
            b"\xff" * 8,
        )
    ),
    st.integers(0, 700).map(lambda n: b"x" * n),
)
LENGTHS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from(
        (
            0,
            1,
            255,
            256,
            2**31,
            2**32,
            2**62,
            2**63 - 9,
            2**63 - 8,
            2**63 - 1,
            2**63,
            2**64 - 9,
            2**64 - 8,
            2**64 - 1,
        )
    ),
)


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=40),
    copies=st.integers(1, 60),
    cut=st.integers(0, 3000),
    surplus=st.integers(-300, 300),
    start=st.integers(0, 40),
)
@settings(max_examples=150, deadline=None)
@example(texts=[b""], copies=60, cut=0, surplus=0, start=0)
def test_whole_and_cut_arrays_are_skipped_as_step_by_step(
    texts: list[bytes], copies: int, cut: int, surplus: int, start: int
) -> None:
    """Longer than a block, cut anywhere, asked for more or fewer strings than there are, from
    anywhere."""
    buf = b"".join(map(string, texts)) * copies
    buf = buf[: max(0, len(buf) - cut)]
    n = max(0, len(texts) * copies + surplus)
    assert skip_strings(buf, start, n) == step_strings(buf, start, n) == model(buf, start, n)


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=40),
    copies=st.integers(8, 60),
    which=st.integers(0, 2000),
    length=LENGTHS,
    tail=st.binary(max_size=20),
)
@settings(max_examples=150, deadline=None)
def test_one_length_lies(
    texts: list[bytes], copies: int, which: int, length: int, tail: bytes
) -> None:
    """A length that points before, into, just to or beyond the end, or past what an index can
    hold."""
    strings = [string(text) for text in texts] * copies
    which %= len(strings)
    strings[which] = struct.pack("<Q", length) + strings[which][8:]
    buf = b"".join(strings) + tail
    for n in (len(strings), len(strings) + 300):
        assert skip_strings(buf, 0, n) == step_strings(buf, 0, n) == model(buf, 0, n)


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=40),
    copies=st.integers(8, 60),
    which=st.integers(0, 2000),
    beyond=st.integers(-20, 20),
)
@settings(max_examples=150, deadline=None)
def test_a_string_ends_near_the_end(
    texts: list[bytes], copies: int, which: int, beyond: int
) -> None:
    strings = [string(text) for text in texts] * copies
    which %= len(strings)
    before = b"".join(strings[:which])
    rest = b"".join(strings[which:])
    buf = before + struct.pack("<Q", max(0, len(rest) - 8 + beyond)) + rest[8:]
    n = len(strings) + 300
    assert skip_strings(buf, 0, n) == step_strings(buf, 0, n) == model(buf, 0, n)


@given(
    buf=st.binary(max_size=400),
    copies=st.integers(1, 20),
    start=st.integers(0, 500),
    n=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_walked_alike(buf: bytes, copies: int, start: int, n: int) -> None:
    assert (
        skip_strings(buf * copies, start, n)
        == step_strings(buf * copies, start, n)
        == model(buf * copies, start, n)
    )


def test_arrays_around_whole_blocks_are_skipped() -> None:
    for n in (0, 1, 127, 128, 129, 255, 256, 257, 511, 768):
        buf = b"".join(string(b"t" * (i % 300)) for i in range(n))
        assert skip_strings(buf, 0, n) == (len(buf), 0)
        assert skip_strings(buf, 0, n + 1) == (len(buf), 1)
        if n:
            assert skip_strings(buf[:-1], 0, n) == step_strings(buf[:-1], 0, n)
            assert skip_strings(buf[:-1], 0, n)[1] == 1
