"""A file would be planned that llama.cpp does not load, or refused though it loads: a key has
another type than the one that llama.cpp asks for, a list of the vocabulary does not fit, or a word
is unknown.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
from functools import cache
from pathlib import Path

import pytest
from support import FIXTURES, gpus, says, with_tensors, write_gguf

from autolayers import Model, estimate
from autolayers.errors import AutolayersError
from autolayers.gguf import read_header
from autolayers.gguf.reader import ARRAY, FORMAT, STRING

CODES = {"u8": 0, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "u64": 10}
CODES |= {"i64": 11, "f64": 12}
Pairs = dict[str, bytes]  # key -> its type and value as they are in a file


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def scalar(type_: str, value: float) -> bytes:
    form = FORMAT[CODES[type_]]
    assert form is not None
    kept = value if type_ in ("f32", "f64") else int(value)
    return struct.pack("<I", CODES[type_]) + form.pack(kept)


def string(text: str) -> bytes:
    return struct.pack("<I", STRING) + _text(text)


@cache
def pairs(name: str) -> tuple[tuple[str, bytes], ...]:
    """The keys of a fixture, each with the bytes of its type and value."""
    data, pos = (FIXTURES / "headers" / f"{name}.gguf").read_bytes(), 24

    def after(kind: int, at: int) -> int:
        if kind == STRING:
            return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
        if kind != ARRAY:
            form = FORMAT[kind]
            assert form is not None
            return at + form.size
        inner, n = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(n):
            at = after(inner, at)
        return at

    found = []
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        n = struct.unpack_from("<Q", data, pos)[0]
        key, start = data[pos + 8 : pos + 8 + n].decode(), pos + 8 + n
        pos = after(struct.unpack_from("<I", data, start)[0], start + 4)
        found.append((key, data[start:pos]))
    return tuple(found)


def changed(name: str, folder: Path, **changes: bytes | None) -> Path:
    """A file with these keys changed or left out; its weights are a hole."""
    header = read_header(FIXTURES / "headers" / f"{name}.gguf")
    kept = {**dict(pairs(name)), **changes}
    values = [_text(key) + value for key, value in kept.items() if value is not None]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(header.tensors), len(values)) + b"".join(values)
    start, size = with_tensors(head, list(header.tensors.values()), header.alignment)
    return write_gguf(folder / "m.gguf", start, size)


def verdict(path: Path) -> tuple[str, str]:
    """Why there is no plan, and why it is not exact; "" where it is."""
    try:
        model = Model(read_header(path), str(path))
        estimate(model, ["-c", "512"], devices=gpus(24576))
    except AutolayersError as error:
        return str(error), ""
    return "", "; ".join(model.inexact)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("llama.context_length", scalar("u64", 256), "wrong type u64 but expected type u32"),
        ("llama.block_count", scalar("i32", 2), "wrong type i32 but expected type u32"),
        ("llama.attention.head_count", scalar("u16", 2), "wrong type u16 but expected type u32"),
        ("llama.rope.freq_base", scalar("f64", 10000), "wrong type f64 but expected type f32"),
        ("llama.rope.scaling.factor", scalar("u32", 2), "wrong type u32 but expected type f32"),
        ("llama.attention.causal", scalar("u8", 1), "wrong type u8 but expected type bool"),
        ("general.name", scalar("u32", 1), "wrong type u32 but expected type str"),
        ("general.file_type", string("x"), "wrong type str but expected type u32"),
        ("split.count", scalar("u32", 0), "wrong type u32 but expected type u16"),
        ("tokenizer.ggml.bos_token_id", scalar("i32", 1), "wrong type i32 but expected"),
        ("tokenizer.ggml.scores", string("x"), "invalid gguf type for tokenizer.ggml.scores"),
        ("tokenizer.ggml.tokens", None, "cannot find tokenizer vocab"),
    ],
)
def test_a_wrong_type_is_refused_in_llama_cpps_words(
    tmp_path: Path, key: str, value: bytes | None, words: str
) -> None:
    path = changed("llama-dense", tmp_path, **{key: value})
    asked = says(path, "--gpu", "24GiB", "--ram", "32GiB", "-c", "256")
    assert asked.returncode != 0
    assert words in asked.stdout.replace("\n", " ") + asked.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.model", string("newer")),
        ("llama.rope.scaling.type", string("newer")),
    ],
)
def test_an_unknown_word_makes_a_plan_that_is_not_exact(
    tmp_path: Path, key: str, value: bytes
) -> None:
    path = changed("llama-dense", tmp_path, **{key: value})
    assert f"{key} is 'newer', which llama.cpp b11549 does not load" in verdict(path)[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("split.no", scalar("f32", 0)),
        ("llama.rope.dimension_sections", string("x")),
        ("llama.decoder_start_token_id", scalar("f64", 0)),
    ],
)
def test_a_key_that_llama_cpp_does_not_read_may_be_of_any_type(
    tmp_path: Path, key: str, value: bytes
) -> None:
    assert verdict(changed("llama-dense", tmp_path, **{key: value}))[0] == ""


MODELS = (
    "llama-dense",
    "gemma3-dense",
    "deepseek2-moe",
    "qwen35-dense",
    "gpt-oss-moe",
    "glm4-dense",
)


def cases(name: str) -> list[tuple[str, bytes | None]]:
    """Each key as three other types, with its value where the type has it; keys that are left out
    are test_demanded's."""
    rng = random.Random(name)
    found: list[tuple[str, bytes | None]] = []
    for key, value in pairs(name):
        kind = struct.unpack_from("<I", value)[0]
        form = FORMAT[kind]
        number = form.unpack_from(value, 4)[0] if form else 1
        others = [each for each, code in CODES.items() if code != kind]
        for type_ in rng.sample(others, 2):
            try:
                found.append((key, scalar(type_, number)))
            except (struct.error, OverflowError):
                found.append((key, scalar(type_, 1)))
        found.append((key, string("1")))
    arch = name.split("-")[0]
    found += [
        ("split.no", scalar("f32", 0)),
        ("split.count", scalar("u32", 0)),
        ("general.file_type", scalar("u16", 0)),
        (f"{arch}.nextn_predict_layers", scalar("u32", 1)),
        (f"{arch}.rope.scaling.type", string("newer")),
        (f"{arch}.classifier.activation", string("newer")),
        ("tokenizer.ggml.model", None),
        ("tokenizer.ggml.model", string("newer")),
        ("tokenizer.ggml.model", string("gpt2")),
        ("tokenizer.ggml.tokens", struct.pack("<IIQ", ARRAY, STRING, 0)),
        ("tokenizer.ggml.tokens", struct.pack("<IIQ", ARRAY, 4, 0)),
        ("tokenizer.ggml.bos_token_id", scalar("i32", 1)),
        ("tokenizer.ggml.suppress_tokens", struct.pack("<IIQ", ARRAY, 4, 0)),
    ]
    return found


@pytest.mark.llamacpp
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_loads_what_is_planned_and_no_more(
    name: str, binaries: Path, tmp_path: Path
) -> None:
    """An exact plan for a file that llama-fit-params does not load is a fault, as is a refusal of
    one that it loads."""
    wrong = []
    for key, value in cases(name):
        if key == "general.architecture":
            continue
        path = changed(name, tmp_path, **{key: value})
        ran = subprocess.run(
            [binaries / "llama-fit-params", "-m", path, "-c", "256"],
            capture_output=True,
            env={**os.environ, "LLAMA_ARG_FIT": "off"},
        )
        said = verdict(path)
        if said[0] if ran.returncode == 0 else not any(said):
            why = [
                line
                for line in ran.stderr.decode("utf-8", "replace").splitlines()
                if "error" in line or "ASSERT" in line
            ]
            wrong.append((key, value and value[:12], said, why[:1]))
    assert wrong == []
