"""The launch that `explain` proposes would fail with the real llama-server.

Failed starts of the real llama-server, and the launch that `explain` hands over: it serves.

Binaries: $AUTOLAYERS_LLAMACPP_BIN, or tests/build_llamacpp.sh builds them (about 15 minutes, once).
"""

from __future__ import annotations

import pathlib
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from control_groups import group_of
from support import FIXTURES, free_port

from autolayers.diagnosis.diagnosis import Diagnosis, explain
from autolayers.machine import Host

pytestmark = [
    pytest.mark.llamacpp,
    pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's"),
]
TINY = FIXTURES / "tiny"
CHAT = str(TINY / "chat.gguf")
GiB = 1 << 30


class Start:
    """One start of llama-server: its log, and whether it serves."""

    def __init__(
        self,
        program: pathlib.Path,
        words: tuple[str, ...],
        log: pathlib.Path,
        lower: Callable[[], None] | None = None,
        shell: tuple[str, ...] = (),
    ) -> None:
        self.log, self.serves = log, False
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [*shell, program, *words], stdout=file, stderr=file, preexec_fn=lower
            )
        port = words[words.index("--port") + 1]
        end = time.monotonic() + 120
        try:
            while process.poll() is None and not self.serves and time.monotonic() < end:
                self.serves = self._healthy(port) and process.poll() is None
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def _healthy(port: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


def twice(
    binaries: pathlib.Path,
    path: pathlib.Path,
    words: list[str],
    lower: Callable[[], None] | None = None,
    host: Host | None = None,
    shell: tuple[str, ...] = (),
) -> tuple[Diagnosis, Start]:
    """What `explain` says of a start that fails, and the start of the launch that it hands over."""
    program = binaries / "llama-server"
    first = Start(program, tuple(words), path / "first.log", lower, shell)
    assert not first.serves, first.log.read_text(errors="replace")[-2000:]
    found = explain(first.log, words=words, host=host)
    works = found.launch or found.mended
    assert works is not None, found.text() + first.log.read_text(errors="replace")[-2000:]
    return found, Start(program, works.words, path / "second.log", lower)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["-m", CHAT, "--n-gpu-layer", "0"], "bad_flag"),
        (["-m", CHAT, "-c", "512", "--ctx-sise", "512"], "bad_flag"),
        # whose blocks do not divide the model's heads
        (["-m", CHAT, "-ctv", "q8_0"], "bad_combo"),
        (["-m", CHAT, "--lora", CHAT], "pair_mismatch"),
        (["-m", "chat-00002-of-00003.gguf"], "bad_file"),
    ],
)
def test_the_second_start_serves(
    words: list[str], cause: str, binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    if cause == "bad_file":
        parts = split(pathlib.Path(CHAT), tmp_path)
        words = ["-m", str(parts[1])]
    found, second = twice(binaries, tmp_path, [*words, "--port", str(free_port())])
    assert found.cause == cause and second.serves, (
        found.text() + second.log.read_text(errors="replace")[-2000:]
    )


def test_a_port_that_is_taken(binaries: pathlib.Path, tmp_path: pathlib.Path, taken: int) -> None:
    found, second = twice(
        binaries, tmp_path, ["-m", CHAT, "--host", "127.0.0.1", "--port", str(taken)]
    )
    assert found.cause == "port_busy" and second.serves, found.text()


def test_ram_that_is_full(binaries: pathlib.Path, tmp_path: pathlib.Path) -> None:
    words = ["-m", CHAT, "-c", "4000000", "-np", "1", "--no-warmup", "--port", str(free_port())]
    found, second = twice(
        binaries,
        tmp_path,
        words,
        lambda: resource.setrlimit(resource.RLIMIT_AS, (3 * GiB, 3 * GiB)),
        Host(GiB, GiB, "test"),
    )
    assert found.cause == "oom_host" and found.launch is not None and found.launch.plan.fits
    assert second.serves, found.text() + second.log.read_text(errors="replace")[-2000:]


def test_a_server_that_the_kernel_killed_starts_again(
    binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    group = group_of("-second")
    if group is None:
        pytest.skip("no right to make control groups")
    try:
        group.holds(GiB)
        words = ["-m", CHAT, "-c", "4000000", "-np", "1", "--no-warmup", "--port", str(free_port())]
        # which says that its child was killed
        shell = ("bash", "-c", '"$0" "$@"; true')
        host = Host(GiB, GiB, "test")
        found, second = twice(binaries, tmp_path, words, group.enter, host, shell)
    finally:
        group.remove()
    assert found.cause == "oom_host" and "killed from outside" in found.line
    assert found.launch is not None and found.launch.plan.fits and second.serves, found.text()


@pytest.mark.parametrize("kind", ["other", "new", "cut", "missing"])
def test_a_projector_that_is_not_the_models(
    kind: str, binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "mmproj.gguf"
    projector(file, "nobodys" if kind == "new" else "mlp")
    if kind == "cut":
        file.write_bytes(file.read_bytes()[:20_000])
    elif kind == "missing":
        file.unlink()
    words = ["-m", CHAT, "--mmproj", str(file), "--port", str(free_port())]
    found, second = twice(binaries, tmp_path, words)
    cause = {"other": "pair_mismatch", "new": "old_build"}.get(kind, "bad_file")
    assert found.cause == cause and second.serves, found.text()
    assert found.mended is not None and found.mended.dropped == ("--mmproj", str(file))


def test_a_servers_memory_that_is_full(binaries: pathlib.Path, tmp_path: pathlib.Path) -> None:
    port = free_port()
    server = subprocess.Popen(
        [binaries / "ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 * GiB, 3 * GiB)),
    )
    try:
        time.sleep(1)
        words = ["-m", CHAT, "--rpc", f"127.0.0.1:{port}", "-ngl", "99", "-c", "4000000"]
        words += ["-np", "1", "--no-warmup", "-lv", "4", "--port", str(free_port())]
        found, second = twice(binaries, tmp_path, words)
    finally:
        server.kill()
        server.wait()
    assert found.cause == "oom_device" and found.device == "RPC0" and found.launch is not None
    # an upper bound: the log does not say how the server aligns
    assert found.bytes is not None and found.launch.predicted is not None
    assert 0 <= found.launch.predicted - found.bytes < 1024 and second.serves, found.text()


@pytest.mark.parametrize("broken", ["cut", "architecture", "part", "magic"])
def test_what_no_launch_mends_gets_none(
    broken: str, binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    data, file = pathlib.Path(CHAT).read_bytes(), tmp_path / "model.gguf"
    if broken == "part":
        file, second, _ = split(pathlib.Path(CHAT), tmp_path)
        second.unlink()
    else:
        file.write_bytes(
            {
                "cut": data[: len(data) * 2 // 3],
                "magic": b"<!DOCTYPE html>" + data[15:],
                "architecture": data.replace(b"llama", b"lloma"),
            }[broken]
        )
    words = ["-m", str(file), "--port", str(free_port())]
    first = Start(binaries / "llama-server", tuple(words), tmp_path / "log")
    found = explain(first.log, words=words)
    assert not first.serves and found.cause == (
        "old_build" if broken == "architecture" else "bad_file"
    ), found.text()
    assert found.launch is None and found.mended is None and found.fatal and found.remedies


def split(model: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """A model as three files, as llama-gguf-split makes them."""
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(model)
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    parts = [reader.tensors[at::3] for at in range(3)]
    paths = [folder / f"chat-0000{n + 1}-of-00003.gguf" for n in range(3)]
    for number, (path, tensors) in enumerate(zip(paths, parts, strict=True)):
        writer = gguf.GGUFWriter(path, arch)
        if number == 0:
            for field in reader.fields.values():
                if not field.name.startswith(("GGUF.", "general.architecture")):
                    kind = field.types[0]
                    writer.add_key_value(
                        field.name,
                        field.contents(),
                        kind,
                        field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None,
                    )
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def projector(path: pathlib.Path, kind: str) -> None:
    """A projector of images for models with an embedding of 48, which chat.gguf has not."""
    gguf, np = pytest.importorskip("gguf"), pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", kind)
    for key, value in {
        "embedding_length": 32,
        "feed_forward_length": 64,
        "block_count": 1,
        "projection_dim": 48,
        "attention.head_count": 2,
        "image_size": 28,
        "patch_size": 14,
    }.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)
    shapes: dict[str, tuple[int, ...]] = {
        "v.class_embd": (32,),
        "v.patch_embd.weight": (32, 3, 14, 14),
        "v.position_embd.weight": (5, 32),
        "v.blk.0.ffn_up.weight": (64, 32),
        "v.blk.0.ffn_up.bias": (64,),
        "v.blk.0.ffn_down.weight": (32, 64),
        "v.blk.0.ffn_down.bias": (32,),
        "mm.0.weight": (48, 32),
        "mm.0.bias": (48,),
        "mm.2.weight": (48, 48),
        "mm.2.bias": (48,),
    }
    for name in ("blk.0.ln1", "blk.0.ln2", "pre_ln"):
        shapes |= {f"v.{name}.weight": (32,), f"v.{name}.bias": (32,)}
    for name in ("q", "k", "v", "out"):
        shapes |= {f"v.blk.0.attn_{name}.weight": (32, 32), f"v.blk.0.attn_{name}.bias": (32,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
