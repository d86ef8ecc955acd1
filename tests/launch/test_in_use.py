"""A server would start and take more with its first prompt than was planned.

The real llama-server on CUDA devices that are not there (mock_cuda.py), which count what is
allocated: at the start, and after its first prompt.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import FIXTURES, free_port, until

import autolayers
from autolayers import Breakdown, LaunchRefused
from autolayers.flags.parse import parse

sys.path.insert(0, str(FIXTURES))

pytestmark = [
    pytest.mark.llamacpp,
    pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD"),
]
GiB = 1 << 30
# the same in every launch with these programs: no part of what is compared
ELSEWHERE = ("prompt cache", "context checkpoints", "cache bookkeeping", "copies of hidden states")


def served(folder: Path, name: str, layers: int = 0, targets: tuple[int, ...] = ()) -> Path:
    """The fixture of that name with its first layers alone and a vocabulary, and a hole for the
    weights. `targets`: the layers that a draft reads."""
    from gguf import GGUFValueType as V
    from recorder.header import Value, read

    header = read(next(FIXTURES.glob(f"**/{name}.gguf")))
    keys, arch = header.metadata, header.architecture
    if layers:
        keys[f"{arch}.block_count"] = Value(V.UINT32, layers)
        header.tensors = [
            tensor
            for tensor in header.tensors
            if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < layers
        ]
    if targets:
        keys[f"{arch}.target_layers"] = Value(V.UINT32, list(targets), True)
    n_vocab = keys[f"{arch}.vocab_size"].value
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = special + [f"\u2581t{i}" for i in range(n_vocab - len(special))]
    types = [2, 3, 3] + [6] * 256 + [1] * (n_vocab - len(special))
    keys["tokenizer.ggml.model"] = Value(V.STRING, "llama")
    keys["tokenizer.ggml.tokens"] = Value(V.STRING, tokens, True)
    keys["tokenizer.ggml.scores"] = Value(V.FLOAT32, [0.0] * n_vocab, True)
    keys["tokenizer.ggml.token_type"] = Value(V.INT32, types, True)
    header.write_sparse(folder / f"{name}.gguf")
    return folder / f"{name}.gguf"


class Server:
    """The program on simulated devices of `gib`. `words`: with the model."""

    def __init__(self, binaries: Path, folder: Path, words: list[str], *gib: float) -> None:
        self.port, self.counted, self.log = free_port(), folder / "bytes", folder / "log"
        environ = {
            **os.environ,
            "LD_PRELOAD": str(binaries / "libmockcuda.so"),
            "MOCK_CUDA": ",".join(str(int(size * GiB)) for size in gib),
            "MOCK_CUDA_BYTES": str(self.counted),
            "GGML_NO_BACKTRACE": "1",
        }
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [str(binaries / "llama-server"), *words, "--port", str(self.port), "-fit", "off"],
                env=environ,
                stdout=log,
                stderr=log,
            )
        until(lambda: self.process.poll() is not None or self.answers())

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health") as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def bytes(self) -> dict[str, int]:
        """What is allocated now, by device."""
        lines = [line.split() for line in self.counted.read_text().splitlines()]
        return {name: int(now) for name, now, _ in lines}

    def prompt(self, n_tokens: int) -> None:
        said = {"prompt": [5] * n_tokens, "n_predict": 2, "cache_prompt": False}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/completion",
            json.dumps(said).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            answer.read()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def predicted(words: list[str], *gib: float) -> Breakdown:
    params = parse(words[2:]).params
    devices = [autolayers.Device.hypothetical(f"{x}GiB", f"CUDA{i}") for i, x in enumerate(gib)]
    return autolayers.estimate(autolayers.read_model(words[1]), params, devices, build=11549)


def pinned(found: Breakdown, grown: bool) -> int:
    """The bytes of pinned memory at the start, or at most."""
    parts = [
        extra.size
        for extra in found.extras
        if extra.device == "Host"
        and extra.name not in (*ELSEWHERE, "draft model weights")
        and (grown or not extra.upper_limit)
    ]
    return found.host.context + found.host.compute + sum(parts)


@pytest.fixture
def started(binaries: Path, tmp_path: Path) -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.end()


@pytest.mark.parametrize(
    ("target", "layers", "draft", "targets", "words"),
    [
        ("llama-3.1-8b-q4_k_m", 4, "", (), "-np 1"),
        ("llama-3.1-8b-q4_k_m", 4, "llama-3.2-1b-q8_0", (), "-np 2 --spec-type draft-simple"),
        ("llama-3.1-8b-q4_k_m", 4, "eagle3-l31", (1, 2, 3), "-np 1 --spec-type draft-eagle3"),
        (
            "llama-3.1-8b-q4_k_m",
            4,
            "eagle3-l31",
            (1, 2, 3),
            "-np 2 --spec-type draft-eagle3 -ub 1024",
        ),
        ("qwen3-8b-q4_k_m", 8, "dflash-8b", (1, 2, 3, 4, 5), "-np 1 --spec-type draft-dflash"),
        ("qwen3.5-4b-mtp-q8_0", 0, "", (), "-np 1 --spec-type draft-mtp"),
    ],
)
def test_a_prompt_takes_what_was_said(
    target: str,
    layers: int,
    draft: str,
    targets: tuple[int, ...],
    words: str,
    binaries: Path,
    started: list[Server],
    tmp_path: Path,
) -> None:
    files = ["-m", str(served(tmp_path, target, layers))]
    if draft:
        files += ["-md", str(served(tmp_path, draft, 0, targets))]
    said = [*files, *words.split(), "-c", "4096"]
    found = predicted(said, 24)
    server = Server(binaries, tmp_path, said, 24)
    started.append(server)
    before = server.bytes()
    server.prompt(2000)
    after = server.bytes()
    devices = {name: use.total for name, use in found.devices.items()}
    for extra in found.extras:
        if extra.device in devices:
            devices[extra.device] += extra.size
    assert {name: after[name] for name in devices} == devices
    assert before["CUDA_Host"] == pinned(found, grown=False)
    # no draft was verified yet, whose outputs are the rest
    unverified = sum(e.size for e in found.extras if e.name == "more outputs")
    block = sum(e.size for e in found.extras if "dflash" in draft and "more outputs" in e.name)
    most = pinned(found, grown=True)
    assert most - max(unverified, block) <= after["CUDA_Host"] <= most


@pytest.mark.parametrize(
    ("name", "words", "gib"),
    [
        ("gemma-3-1b-q8_0", "", (24, 24)),
        ("llama-3.2-1b-q8_0", "-ts 5,2,2", (24, 24, 24)),
        ("qwen3.5-4b-mtp-q8_0", "-ts 5,24,7.5", (24, 24, 24)),
        ("mtp-qwen3next", "", (24, 24, 24)),
        ("mtp-qwen3next", "", (24, 24)),
    ],
)
def test_slices_end_a_server_where_it_is_said(
    name: str,
    words: str,
    gib: tuple[int, ...],
    binaries: Path,
    started: list[Server],
    tmp_path: Path,
) -> None:
    said = ["-m", str(served(tmp_path, name)), "-sm", "tensor", "-c", "2048", *words.split()]
    try:
        predicted(said, *gib)
        refused = ""
    except LaunchRefused as refusal:
        refused = str(refusal)
    server = Server(binaries, tmp_path, said, *gib)
    started.append(server)
    if server.process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            server.prompt(7)
    ended = server.process.poll() is not None
    assert ended == bool(refused), refused or server.log.read_text()[-500:]
