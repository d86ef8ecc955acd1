"""A header would say another thing here than to llama.cpp.

read_header on real files: what it says, for which sources, and the same as the gguf package's
own reader.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import FIXTURES

from autolayers import ModelError
from autolayers.gguf import TYPES, ArrayInfo, Header, n_bytes, read_header, row_size

HEADERS = sorted((FIXTURES / "headers").glob("*.gguf"))
TINY = FIXTURES / "tiny"
SIZES: dict[str, int] = json.loads((FIXTURES / "headers" / "sizes.json").read_text())


class Stream:
    """Only read(n), which returns as little as a socket may."""

    def __init__(self, data: bytes, step: int) -> None:
        self.inner = io.BytesIO(data)
        self.step = step

    def read(self, n: int) -> bytes:
        return self.inner.read(min(n, self.step))


def same(a: Header, b: Header) -> bool:
    return (a.version, a.alignment, a.metadata, a.tensors, a.data_offset) == (
        b.version,
        b.alignment,
        b.metadata,
        b.tensors,
        b.data_offset,
    )


def test_metadata_and_tensors_of_a_real_model_are_read() -> None:
    header = read_header(FIXTURES / "headers" / "llama-3.1-8b-q4_k_m.gguf")
    assert header.version == 3
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.block_count"] == 32
    assert len(header.tensors) == 292
    output = header.tensors["output.weight"]
    assert (output.type, output.ne, output.n_dims) == ("q6_K", (4096, 128256, 1, 1), 2)
    assert output.n_bytes == 128256 * 4096 // 256 * 210
    assert output.exact


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.stem)
def test_promised_size_is_the_whole_file(path: Path) -> None:
    """A file ends after its last tensor; writers may pad it up to the alignment."""
    file = read_header(path).files[0]
    assert 0 <= SIZES[path.stem] - file.promised < 32
    assert file.size == path.stat().st_size


def test_a_file_of_full_length_is_not_truncated(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(FIXTURES / "headers" / "phi-3-mini-q4_k_m.gguf", path)
    promised = SIZES["phi-3-mini-q4_k_m"]
    short = read_header(path)
    assert short.truncated
    assert short.warnings == (
        f"{path} is incomplete: {path.stat().st_size} bytes, but its header "
        f"promises "
        f"{short.files[0].promised}",
    )
    os.truncate(path, promised)
    whole = read_header(path)
    assert not whole.truncated
    assert whole.warnings == ()
    assert same(short, whole)


def test_every_metadata_type_is_read() -> None:
    values = read_header(TINY / "types.gguf").metadata
    assert values["scalar.uint64.1"] == 2**64 - 1
    assert values["scalar.int64.0"] == -(2**63)
    assert values["scalar.float32.1"] == -2.0
    assert values["scalar.float64.0"] == 0.1
    assert values["scalar.bool.0"] is True
    assert values["scalar.string.1"] == "zwölf 🦙"
    assert values["array.bool"] == (True, False)
    assert values["array.int8"] == (-128, 127)
    assert values["array.per_layer"] == tuple(range(512))
    assert values["array.long"] == ArrayInfo("i32", 5000)
    assert values["array.string"] == ArrayInfo("str", 2)


def test_alignment_moves_the_data() -> None:
    header = read_header(TINY / "types.gguf")
    assert header.alignment == 64
    assert header.data_offset % 64 == 0
    assert all(tensor.offset % 64 == 0 for tensor in header.tensors.values())


def test_vocabulary_keeps_its_length_only() -> None:
    header = read_header(TINY / "chat.gguf")
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayInfo("str", 384)
    assert len(header.metadata["tokenizer.ggml.tokens"]) == 384  # type: ignore[arg-type]


def test_version_2_reads_as_version_3() -> None:
    old, new = read_header(TINY / "v2.gguf"), read_header(TINY / "dense.gguf")
    assert (old.version, new.version) == (2, 3)
    assert old.tensors == new.tensors
    assert old.metadata == new.metadata


@pytest.mark.parametrize("name", ["chat", "dense", "moe", "types", "v2"])
def test_a_header_says_what_the_gguf_package_reads(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    theirs = gguf.GGUFReader(TINY / f"{name}.gguf")
    ours = read_header(TINY / f"{name}.gguf")
    keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert list(ours.metadata) == keys
    for key, value in ours.metadata.items():
        expected = theirs.fields[key].contents()
        if isinstance(value, ArrayInfo):
            assert value.length == len(expected)
        else:
            assert value == (tuple(expected) if isinstance(expected, list) else expected)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor, expected in zip(ours.tensors.values(), theirs.tensors, strict=True):
        assert tensor.type.lower() == expected.tensor_type.name.lower()
        assert list(tensor.ne[: tensor.n_dims]) == [int(extent) for extent in expected.shape]
        assert (tensor.n_bytes, tensor.offset) == (expected.n_bytes, expected.data_offset)
        assert tensor.n_elements == expected.n_elements


def test_committed_models_are_what_the_script_writes(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    subprocess.run(
        [sys.executable, FIXTURES / "make_fixtures.py", tmp_path], check=True, capture_output=True
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in TINY.iterdir()
    )
    for path in TINY.iterdir():
        assert same(read_header(path), read_header(tmp_path / path.name)), path.name


def test_every_ggml_type_is_counted_as_ggml_counts_it() -> None:
    gguf = pytest.importorskip("gguf")
    assert len(TYPES) == 36
    newer = {"q2_0": (42, 64, 18), "f8_e4m3": (43, 1, 1)}  # than the package
    for type_ in TYPES:
        if type_.name in newer:
            assert (type_.id, type_.blck_size, type_.type_size) == newer[type_.name]
            continue
        theirs = gguf.GGMLQuantizationType(type_.id)
        assert theirs.name.lower() == type_.name.lower()
        # the package has 40
        size = 36 if type_.name == "q8_1" else gguf.GGML_QUANT_SIZES[theirs][1]
        assert (type_.blck_size, type_.type_size) == (gguf.GGML_QUANT_SIZES[theirs][0], size)


def test_row_size_and_n_bytes_count_blocks() -> None:
    assert row_size("q4_K", 4096) == 2304
    assert n_bytes("q4_K", (4096, 14336, 1, 1)) == 2304 * 14336
    assert n_bytes("f16", (3, 5, 7)) == 210
    with pytest.raises(KeyError):
        row_size("q9_Z", 32)


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 20])
@pytest.mark.parametrize("name", ["chat", "types"])
def test_a_stream_reads_as_the_file(name: str, step: int) -> None:
    data = (TINY / f"{name}.gguf").read_bytes()
    header = read_header(Stream(data, step))
    assert same(header, read_header(TINY / f"{name}.gguf"))
    assert header.files[0].size is None
    assert not header.truncated


def test_tensor_data_is_not_needed_and_not_read() -> None:
    path = TINY / "chat.gguf"
    data = path.read_bytes()[: read_header(path).data_offset]
    header = read_header(io.BytesIO(data))
    assert same(header, read_header(path))
    assert (header.files[0].size, header.files[0].promised) == (len(data), path.stat().st_size)
    assert header.truncated


@pytest.mark.parametrize("part", [1, 2, 3])
def test_any_part_of_a_split_model_gives_all_of_it(part: int) -> None:
    header = read_header(TINY / f"split-{part:05d}-of-00003.gguf")
    whole = read_header(TINY / "dense.gguf")
    assert list(header.tensors) == list(whole.tensors)
    assert [file.path for file in header.files] == [
        str(TINY / f"split-{i:05d}-of-00003.gguf") for i in (1, 2, 3)
    ]
    assert header.metadata["general.architecture"] == "llama"
    assert [tensor.file for tensor in header.tensors.values()] == [0] * 8 + [1] * 8 + [2] * 5
    for tensor in header.tensors.values():
        twin = whole.tensors[tensor.name]
        assert (tensor.type, tensor.ne, tensor.n_bytes) == (twin.type, twin.ne, twin.n_bytes)
        with open(header.files[tensor.file].path, "rb") as a, open(TINY / "dense.gguf", "rb") as b:
            a.seek(tensor.offset)
            b.seek(twin.offset)
            assert a.read(tensor.n_bytes) == b.read(twin.n_bytes)


def test_parts_are_joined_from_objects() -> None:
    parts = [(TINY / f"split-{i:05d}-of-00003.gguf").read_bytes() for i in (1, 2, 3)]
    header = read_header([io.BytesIO(part) for part in parts])
    assert header.tensors == read_header(TINY / "split-00001-of-00003.gguf").tensors
    with pytest.raises(ModelError, match="part 2 of 3, but 1 parts were given"):
        read_header(io.BytesIO(parts[1]))
    with pytest.raises(ModelError, match="it is part 3, expected part 2 of 3"):
        read_header([io.BytesIO(parts[i]) for i in (0, 2, 1)])


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    for i in (1, 3):
        shutil.copy(TINY / f"split-{i:05d}-of-00003.gguf", tmp_path)
    with pytest.raises(ModelError) as error:
        read_header(tmp_path / "split-00003-of-00003.gguf")
    assert str(error.value) == (
        f"{tmp_path}/split-00002-of-00003.gguf: part 2 of 3 of "
        f"{tmp_path}/split-00003-of-00003.gguf is missing"
    )


def test_a_renamed_part_is_refused(tmp_path: Path) -> None:
    shutil.copy(TINY / "split-00002-of-00003.gguf", tmp_path / "model.gguf")
    with pytest.raises(
        ModelError,
        match=r"part 2 of 3, so its name must end with "
        r"-00002-of-00003\.gguf",
    ):
        read_header(tmp_path / "model.gguf")


def test_a_foreign_part_is_refused(tmp_path: Path) -> None:
    for i, source in enumerate(
        ("split-00001-of-00003", "split-00001-of-00003", "split-00003-of-00003")
    ):
        shutil.copy(TINY / f"{source}.gguf", tmp_path / f"model-{i + 1:05d}-of-00003.gguf")
    with pytest.raises(ModelError, match="it is part 1, expected part 2 of 3"):
        read_header(tmp_path / "model-00001-of-00003.gguf")


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="Is a directory"):
        read_header(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="not a regular file"):
        read_header(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="null"):
        read_header("a\0b")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelError, match="it is empty"):
        read_header(tmp_path / "empty.gguf")
    (tmp_path / "page.gguf").write_text("<!doctype html>")
    with pytest.raises(ModelError, match="not a GGUF file: a web page"):
        read_header(tmp_path / "page.gguf")


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"<html>", "a web page"),
        (b"PK\x03\x04", "an archive"),
        (b"tjgg\x03\0\0\0", "a format before GGUF"),
        (b'\x98\0\0\0\0\0\0\0{"__', "safetensors"),
        (b"GGML", "it starts with b'GGML'"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, start: bytes, what: str) -> None:
    (tmp_path / "m.gguf").write_bytes(start)
    with pytest.raises(ModelError, match=f"m.gguf: not a GGUF file: .*{what}"):
        read_header(tmp_path / "m.gguf")


def test_reading_imports_nothing_heavy() -> None:
    code = (
        "import sys; import autolayers.gguf; autolayers.gguf.read_header(sys.argv[1]); "
        "heavy = {'numpy', 'gguf', 'pathlib', 'typing', 're', 'dataclasses', 'json', 'logging'} & "
        "set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, TINY / "chat.gguf"],
        capture_output=True,
        text=True,
        cwd=FIXTURES.parent,
    )
    assert done.stderr == ""


def test_a_misspelt_file_is_told_its_neighbour(tmp_path: Path) -> None:
    """Whoever reads it: run -m, -md, --lora, read_model."""
    (tmp_path / "Qwen3-8B-Q4_K_M.gguf").touch()
    for wrong in ("Qwen3-8B-Q4_K.gguf", "qwen3-8b-q4_k_m.gguf", "Qwen3-8B-Q4_K_M"):
        with pytest.raises(ModelError) as found:
            read_header(tmp_path / wrong)
        near = tmp_path / "Qwen3-8B-Q4_K_M.gguf"
        assert str(found.value) == f"{tmp_path / wrong}: no such file; did you mean {near}?"
    with pytest.raises(ModelError, match=r"no such file$"):
        read_header(tmp_path / "other.gguf")
    with pytest.raises(ModelError, match=r"did you mean .*Qwen3-8B-Q4_K_M\.gguf\?$"):
        read_header(tmp_path / "qwen3.gguf")


@pytest.mark.skipif(os.name == "nt", reason="links of POSIX")
def test_a_link_to_nothing_is_not_told_itself(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").symlink_to("gone.gguf")
    with pytest.raises(ModelError, match=r"m\.gguf: a link to gone\.gguf, which is not there$"):
        read_header(tmp_path / "m.gguf")
