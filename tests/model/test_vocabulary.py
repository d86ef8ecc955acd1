"""A draft that llama.cpp refuses would be proposed, or a right one refused.

Drafts of another vocabulary, by the rule of common_speculative_are_compatible: the tiny chat
model against copies of it with one thing changed in the file.
"""

from __future__ import annotations

import pathlib
import struct

import pytest
from support import TESTS

import autolayers
from autolayers.errors import LaunchRefused
from autolayers.gguf.vocabulary import strings

CHAT = TESTS.parent / "fixtures" / "tiny" / "chat.gguf"
TOKENS = list(strings(str(CHAT), "tokenizer.ggml.tokens"))
DRAFTS = ("--spec-type", "draft-simple")


def key(name: str, text: str, value: bytes = b"") -> bytes:
    kind = 8 if not value else {1: 7, 4: 4}[len(value)]
    entry = value or struct.pack("<Q", len(text)) + text.encode()
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + entry


def number(name: str, value: int) -> bytes:
    return key(name, "", struct.pack("<I", value))


def token(i: int) -> bytes:
    return struct.pack("<Q", len(TOKENS[i])) + TOKENS[i]


def array(n: int) -> bytes:
    name = "tokenizer.ggml.tokens"
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IIQ", 9, 8, n)


BOS = "tokenizer.ggml.bos_token_id"
MODEL = "tokenizer.ggml.model"
ADDS = (
    key("tokenizer.ggml.add_bos_token", "", b"\0"),
    key("tokenizer.ggml.add_bos_token", "", b"\1"),
)
CHANGED = {
    "type": [(key(MODEL, "gpt2"), key(MODEL, "bert"))],
    "adds": [ADDS],
    "text": [(token(300), struct.pack("<Q", len(TOKENS[300])) + b"~" * len(TOKENS[300]))],
    # ids below 5 may differ
    "early text": [(token(4), struct.pack("<Q", len(TOKENS[4])) + b"~" * len(TOKENS[4]))],
    "bos": [(number(BOS, 315), number(BOS, 316))],
}


def changed(path: pathlib.Path, changes: list[tuple[bytes, bytes]]) -> str:
    data = CHAT.read_bytes()
    for before, after in changes:
        assert data.count(before) == 1
        data = data.replace(before, after)
    path.write_bytes(data)
    return str(path)


def plan(model: str, draft: str, *words: str) -> autolayers.Plan:
    return autolayers.plan(model, ["-md", draft, "--gpu", "8GiB", "--ram", "16GiB", *words])


def test_the_tokens_of_a_file_are_read() -> None:
    assert len(TOKENS) == 384 and TOKENS[:2] == ["\u0100".encode(), "\u0101".encode()]
    assert list(strings(str(CHAT), "tokenizer.ggml.nothing")) == []


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("type", "the draft's vocabulary is WPM, the model's BPE"),
        ("adds", "add_bos_token is true in the draft, false in the model"),
        ("text", "token 300 is '~"),
        ("bos", ""),
        ("early text", ""),
    ],
)
def test_a_draft_of_another_vocabulary_is_refused(
    tmp_path: pathlib.Path, what: str, said: str
) -> None:
    draft = changed(tmp_path / "draft.gguf", CHANGED[what])
    if not said:  # a BOS that is not added, and the first five tokens
        assert plan(str(CHAT), draft, *DRAFTS).fits
        return
    with pytest.raises(LaunchRefused) as refused:
        plan(str(CHAT), draft, *DRAFTS)
    assert said in str(refused.value)


def test_a_bos_that_is_added_is_the_model_s_own(tmp_path: pathlib.Path) -> None:
    model = changed(tmp_path / "model.gguf", [ADDS])
    draft = changed(tmp_path / "draft.gguf", [ADDS, *CHANGED["bos"]])
    with pytest.raises(LaunchRefused, match="the draft's BOS is token 316, the model's 315"):
        plan(model, draft, *DRAFTS)


def test_the_same_vocabulary_drafts(tmp_path: pathlib.Path) -> None:
    assert plan(str(CHAT), changed(tmp_path / "draft.gguf", []), *DRAFTS).fits


def test_a_draft_that_is_not_used_may_have_any(tmp_path: pathlib.Path) -> None:
    found = plan(str(CHAT), changed(tmp_path / "draft.gguf", CHANGED["text"]))
    assert found.params.spec_type == () and found.params.model_draft is None
    why = "-md is left out: llama-server does not draft with the draft's vocabulary: token "
    assert any(line.startswith(why) for line in found.warnings)


@pytest.mark.parametrize(
    ("build", "refused"), [(5900, True), (6170, False), (9101, False), (9113, True)]
)
def test_builds_that_translate_drafts_accept_another_vocabulary(
    tmp_path: pathlib.Path, build: int, refused: bool
) -> None:
    draft = changed(tmp_path / "draft.gguf", CHANGED["text"])
    words = ["--llama-build", str(build), *(DRAFTS if build > 9100 else ())]
    if refused:
        with pytest.raises(LaunchRefused):
            plan(str(CHAT), draft, *words)
    else:
        assert any(
            "each draft is translated" in line for line in plan(str(CHAT), draft, *words).warnings
        )
