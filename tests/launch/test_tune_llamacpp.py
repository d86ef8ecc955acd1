"""`autolayers tune` would misread the real llama-bench.

`autolayers tune` with the real llama-bench: on the processor, and on a ggml-rpc-server as the
GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from autolayers.flags.parse import parse
from autolayers.launch.bench import in_its_words, read_program
from autolayers.launch.speed_rows import check

pytestmark = pytest.mark.llamacpp
LAYERS, WIDTH, EXPERTS = 6, 256, 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A mixture of experts of 10 million parameters without a vocabulary."""
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    path = tmp_path_factory.mktemp("model") / "moe.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(64)
    writer.add_vocab_size(512)
    writer.add_tokenizer_model("no_vocab")
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    shapes = {"token_embd": (512, WIDTH), "output": (512, WIDTH), "output_norm": (WIDTH,)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.{name}": shape
            for name, shape in {
                "attn_norm": (WIDTH,),
                "ffn_norm": (WIDTH,),
                "attn_q": (WIDTH, WIDTH),
                "attn_k": (128, WIDTH),
                "attn_v": (128, WIDTH),
                "attn_output": (WIDTH, WIDTH),
                "ffn_gate_inp": (EXPERTS, WIDTH),
                "ffn_gate_exps": (EXPERTS, WIDTH, WIDTH),
                "ffn_up_exps": (EXPERTS, WIDTH, WIDTH),
                "ffn_down_exps": (EXPERTS, WIDTH, WIDTH),
            }.items()
        }
    for name, shape in shapes.items():
        values = numpy.full(shape, 0.01, numpy.float32 if len(shape) == 1 else numpy.float16)
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Network:
    """A port whose connections reach `port` and back with a delay: seconds that what else runs here
    changes little."""

    def __init__(self, port: int, delay: float) -> None:
        self.port, self.delay = port, delay
        self.loop = asyncio.new_event_loop()
        server = self.loop.run_until_complete(asyncio.start_server(self.connect, "127.0.0.1", 0))
        self.address = "{}:{}".format(*server.sockets[0].getsockname())
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(self.carry(reader, back), self.carry(there, writer))

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes in order, each `delay` later than it came; the end too."""
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                self.loop.call_later(self.delay, writer.write, data)
        self.loop.call_later(self.delay, writer.close)


@pytest.fixture
def gpu(binaries: pathlib.Path) -> Iterator[str]:
    """The address of an RPC server with one thread, 5 ms away."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [binaries / "ggml-rpc-server", "-p", str(port), "-t", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(200):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield Network(port, 0.005).address
    server.kill()
    server.wait()


def tune(
    path: pathlib.Path, binaries: pathlib.Path, own: list[str], words: list[str]
) -> tuple[dict, list[dict], str]:
    """(the JSON answer, the rows shared, stderr)."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    environ |= {"XDG_STATE_HOME": str(path / "state"), "XDG_CONFIG_HOME": str(path)}
    rows, server = path / "rows.jsonl", str(binaries / "llama-server")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "autolayers",
            "tune",
            "--json",
            "--limit",
            "90s",
            "--share",
            str(rows),
            *own,
            server,
            *words,
        ],
        capture_output=True,
        text=True,
        env=environ,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    again = subprocess.run(
        [
            sys.executable,
            "-m",
            "autolayers",
            "run",
            "--dry-run",
            *[word for word in own if word not in ("--limit", "90s")],
            server,
            *words,
        ],
        capture_output=True,
        text=True,
        env=environ,
        timeout=60,
        check=False,
    )
    assert (
        shlex.split(again.stdout) == answer["command"]
        and "measured by autolayers tune" in again.stderr
    )
    return answer, [json.loads(line) for line in rows.read_text().splitlines()], done.stderr


def measured(binaries: pathlib.Path, model: pathlib.Path, flags: list[str]) -> float:
    """Seconds of 1024 tokens of prompt and 2048 of answer by llama-bench itself with a launch's
    flags, the better of two rates."""
    program = read_program([str(binaries / "llama-bench")], os.environ)
    words, _ = in_its_words(parse(flags, command=None).params, program.flags)
    done = subprocess.run(
        [
            *program.words,
            "-m",
            str(model),
            *words,
            "-p",
            "1024",
            "-n",
            "16",
            "-r",
            "2",
            "-o",
            "jsonl",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    prompt, token = (max(json.loads(line)["samples_ts"]) for line in done.stdout.splitlines())
    return 1024 / prompt + 2048 / token


def test_tune_measures_launches_on_the_processor(
    model: pathlib.Path, binaries: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    answer, rows, _ = tune(
        tmp_path, binaries, ["--workload", "64+64"], ["-m", str(model), "-t", "1"]
    )
    launches = answer["launches"]
    assert len(launches) >= 2 and any("-fa off" in launch["placement"] for launch in launches)
    assert launches[0]["seconds"] == min(launch["seconds"] for launch in launches)
    assert len(rows) == 2 * len(launches) and [check(row) for row in rows] == [""] * len(rows)


def test_the_best_of_five_placements_on_a_gpu_is_kept(
    model: pathlib.Path, binaries: pathlib.Path, gpu: str, tmp_path: pathlib.Path
) -> None:
    """Each visit to the GPU costs 10 ms, more than what other processes here may cost a launch of
    milliseconds."""
    own = ["--workload", "1024+2048", "--budget", "RPC0=32MiB", "--margin", "1MiB"]
    words = ["-m", str(model), "--rpc", gpu, "-c", "4096", "-np", "1", "-t", "1"]
    answer, _, said = tune(tmp_path, binaries, own, words)
    launches = answer["launches"]
    assert len(launches) == 5, said
    kinds = " | ".join(launch["placement"] for launch in launches)
    assert "experts" in kinds and "0 of 7 layers" in kinds
    seconds = [measured(binaries, model, launch["flags"]) for launch in launches]
    assert seconds[0] == min(seconds), (kinds, seconds, said)
    assert sorted(seconds)[1] > 1.5 * seconds[0]
