"""The plan would be compared with a launch that --fit does not choose.

--fit's own answer: the steps of its search as numbers, and (marked) against llama.cpp's own
llama-fit-params and llama-server.

Both: $AUTOLAYERS_LLAMACPP_BIN, or tests/build_llamacpp.sh builds them (about 15 minutes, once).
Their GPUs are two ggml-rpc-servers, of which --fit-target says how much may be taken, or CUDA
devices that are not there (mock_cuda.py).
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import TESTS, gpu, model, slow

import autolayers
from autolayers import Device
from autolayers.devices import hypothetical
from autolayers.flags.params import Params
from autolayers.flags.parse import parse
from autolayers.flags.write import to_words
from autolayers.gguf import read_header
from autolayers.machine import Machine
from autolayers.memory import context
from autolayers.memory.weights import place_weights
from autolayers.planner.evaluate import FULL, Evaluator
from autolayers.planner.one.fit import fit, fit_with_overheads

HEADERS = TESTS.parent / "fixtures" / "headers"


def answer(name: str, flags: str, *devices: Device) -> Params:
    evaluator = Evaluator.of(
        autolayers.read_model(next(HEADERS.parent.glob(f"**/{name}.gguf"))),
        Machine(devices, {d.name: d.free for d in devices}),
    )
    found = fit(evaluator, parse(flags.split()).params, FULL)
    assert found is not None
    return found.params


class TestItsSteps:
    def test_what_fits_is_left_alone(self) -> None:
        found = answer("llama-3.2-1b-q8_0", "", gpu(24))
        assert (found.n_gpu_layers, found.n_ctx, found.overrides) == (None, 131072, ())

    def test_the_context_shrinks_first(self) -> None:
        found = answer("llama-3.2-1b-q8_0", "", gpu(4))
        assert found.n_gpu_layers is None and 4096 < (found.n_ctx or 0) < 131072

    def test_to_the_floor_where_that_is_not_enough_and_then_layers_go(self) -> None:
        found = answer("llama-3.1-8b-q4_k_m", "", gpu(5))
        assert found.n_ctx == 4096 and 0 < (found.n_gpu_layers or 0) < 33

    @pytest.mark.parametrize(
        ("flags", "least"),
        [
            slow("-np 2", 8192),
            ("-np 2 -kvu", 4096),
            slow("-np 3 -fitc 2048", 6144),
            slow("-fitc 6000", 6000),
        ],
    )
    def test_each_slot_with_its_own_cache_has_the_floor(self, flags: str, least: int) -> None:
        found = answer("llama-3.1-8b-q4_k_m", flags, gpu(5))
        assert found.n_ctx == least and 0 < (found.n_gpu_layers or 0) < 33

    def test_each_slot_with_its_own_cache_has_the_trained_context_where_that_fits(self) -> None:
        assert answer("llama-3.2-1b-q8_0", "-np 2", gpu(40)).n_ctx == 2 * 131072

    def test_a_context_that_is_trained_no_longer_than_the_floor_stays(self) -> None:
        found = answer("phi-3-mini-q4_k_m", "", gpu(2))
        assert found.n_ctx == 4096 and 0 < (found.n_gpu_layers or 0) < 33

    def test_a_given_context_stays(self) -> None:
        assert answer("llama-3.1-8b-q4_k_m", "-c 9000", gpu(5)).n_ctx == 9000

    def test_it_gives_up_where_layers_are_given_but_keeps_the_shrunken_context(self) -> None:
        found = answer("llama-3.1-8b-q4_k_m", "-ngl 20", gpu(2))
        assert (found.n_gpu_layers, found.n_ctx) == (20, 4096)

    def test_experts_go_to_ram_and_part_of_one_layer_comes_back(self) -> None:
        found = answer("gpt-oss-20b-mxfp4", "-c 8192", gpu(8))
        assert found.n_gpu_layers == 25
        assert all(buffer == "CPU" for _, buffer in found.overrides)
        assert found.overrides[-1][0] == r"blk\.24\.ffn_(up|down|gate_up|gate)_(ch|)exps"

    @pytest.mark.parametrize(
        ("name", "gib", "n_ctx", "layers"),
        [
            ("qwen3.5-4b-q4_k_m", 6, 75520, None),
            slow("qwen3.6-27b-q4_k_m", 12, 4096, 43),
            slow("falcon-h1-7b-q4_k_m", 5, 4096, 38),
        ],
    )
    def test_recurrent_states_count_twice(
        self, name: str, gib: int, n_ctx: int, layers: int | None
    ) -> None:
        found = answer(name, "-np 1", gpu(gib))
        assert (found.n_ctx, found.n_gpu_layers) == (n_ctx, layers)

    @pytest.mark.slow
    def test_a_layer_may_overflow_to_the_next_device(self) -> None:
        found = answer("gpt-oss-20b-mxfp4", "-c 8192 -fitt 0", gpu(4, 0), gpu(6, 1))
        assert sum(found.tensor_split or ()) == 25
        assert "CUDA1" in {buffer for _, buffer in found.overrides}


# Models of a few layers, bytes that are free, and what else than weights and caches takes: with
# `targets` up to these bytes of each device, some of which are exactly what a launch takes.
CHOICES = [
    json.loads(line)
    for line in pathlib.Path(__file__).with_name("fit.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("row", CHOICES, ids=lambda row: f"{row['model']} {row['words']}")
def test_its_choice_for_sizes_is_what_it_was(row: dict[str, Any]) -> None:
    devices = tuple([Device(f"CUDA{i}", size, size) for i, size in enumerate(row["gpus"])])
    names = [device.name for device in devices]
    limits = dict(zip(names, row["gpus"], strict=True))
    evaluator = Evaluator.of(model(row["model"]), Machine(devices, limits))
    found = fit_with_overheads(
        evaluator,
        parse(row["words"].split()).params,
        dict(zip(names, row["overheads"], strict=True)),
        dict(zip(names, row["targets"], strict=True)) if "targets" in row else None,
    )
    assert found is not None and " ".join(to_words(found)) == row["choice"]


@pytest.fixture(scope="session")
def servers(binaries: pathlib.Path) -> Iterator[list[str]]:
    """Two endpoints of RPC servers."""
    processes, endpoints = [], []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes.append(
            subprocess.Popen(
                [binaries / "ggml-rpc-server", "-H", "127.0.0.1", "-p", str(port)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        endpoints.append(f"127.0.0.1:{port}")
        for _ in range(200):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
    yield endpoints
    for process in processes:
        process.terminate()
        process.wait()


@pytest.mark.llamacpp
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "name",
    ["llama-3.2-1b-q8_0", "llama-3.1-8b-q4_k_m", "qwen3-30b-a3b-q4_k_m", "gpt-oss-20b-mxfp4"],
)
def test_fit_chooses_the_same_words_as_llama_fit_params(
    name: str,
    count: int,
    binaries: pathlib.Path,
    servers: list[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # llama-fit-params reserves an output row for every token of a batch, llama-server one per slot.
    monkeypatch.setattr(context, "_outputs", lambda params, embeddings, n_batch, n_seq_max: n_batch)
    path = sparse(name, tmp_path)
    model = autolayers.read_model(path)
    endpoints = servers[:count]
    memory = next(
        int(line.split()[1]) << 10
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal:")
    )
    devices = tuple(
        Device(f"RPC{i}", memory, memory, backend="RPC", kind="rpc") for i in range(count)
    )
    seed = random.Random(f"{name} {count}")
    for _ in range(6):
        budget = [
            min(round(model.size / count * seed.uniform(0.15, 1.4)) >> 20, (memory >> 20) - 16)
            for _ in range(count)
        ]
        flags = [
            "-fitt",
            ",".join(str((memory >> 20) - size) for size in budget),
            "-np",
            "1",
            *seed.choice(
                [[], ["-c", "8192"], ["-c", "4096", "-ctk", "q8_0", "-fa", "on"], ["-ub", "128"]]
            ),
        ]
        theirs = (
            subprocess.run(
                [binaries / "llama-fit-params", "--rpc", ",".join(endpoints), "-m", path, *flags],
                capture_output=True,
                text=True,
                check=True,
            )
            .stdout.strip()
            .splitlines()[-1]
        )
        for i, endpoint in enumerate(endpoints):
            theirs = theirs.replace(f"RPC0[{endpoint}]", f"RPC{i}")
        found = fit(
            Evaluator.of(model, Machine(devices, {d.name: d.free for d in devices})),
            parse(flags).params,
            FULL,
        )
        assert found is not None
        assert words(found.params) == theirs, f"{flags} with {budget} MiB"


def sparse(name: str, folder: pathlib.Path) -> pathlib.Path:
    """A model of full length, of which only the header is there."""
    path = folder / f"{name}.gguf"
    shutil.copy(HEADERS / path.name, path)
    os.truncate(path, json.loads((HEADERS / "sizes.json").read_text())[name])
    return path


sys.path.append(str(TESTS.parent / "docs"))
from make_plans import MACHINES, MODELS  # noqa: E402


@pytest.mark.llamacpp
@pytest.mark.parametrize("cards", [cards for _, cards in MACHINES])
@pytest.mark.parametrize("name", MODELS)
def test_the_fit_column_of_the_document_is_llama_server_s_choice(
    name: str,
    cards: str,
    binaries: pathlib.Path,
    mock_cuda: Callable[..., dict[str, str]],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every cell of docs/plans.md: llama-server's own --fit chooses it, and llama-fit-params the
    same but for its output rows."""
    path = sparse(name, tmp_path)
    model, devices = autolayers.read_model(path), tuple(hypothetical(cards))
    environ = {**os.environ, **mock_cuda(*devices)}

    def ours(given: Params) -> Params:
        found = fit(
            Evaluator.of(model, Machine(devices, {d.name: d.free for d in devices})), given, FULL
        )
        assert found is not None
        return found.params

    chosen, log = ours(Params()), ask_server(binaries, path, environ)
    n_ctx = re.findall(r"context size reduced from \d+ to (\d+)", log)
    assert (int(n_ctx[-1]) if n_ctx else model.n_ctx_train) == chosen.n_ctx
    placement = place_weights(model, chosen, devices)
    assert re.findall(r"layer +\d+ assigned to device (\w+)", log)[-model.n_layer - 1 :] == [
        *placement.dev_layer,
        placement.dev_output,
    ]
    overridden = dict(re.findall(r"tensor (\S+) \(.*buffer type overridden to (\w+)", log))
    assert overridden == {
        placed.name: placed.buffer
        for placed in placement.tensors
        if any(re.search(pattern, placed.name) for pattern, _ in chosen.overrides)
    }

    # llama-fit-params takes one slot where none are given
    monkeypatch.setattr(context, "_outputs", lambda params, embeddings, n_batch, n_seq_max: n_batch)
    theirs = subprocess.run(
        [binaries / "llama-fit-params", "-m", path],
        capture_output=True,
        text=True,
        check=True,
        env=environ,
    )
    assert words(ours(Params(n_parallel=1))) == theirs.stdout.strip().splitlines()[-1]


def ask_server(binaries: pathlib.Path, path: pathlib.Path, environ: dict[str, str]) -> str:
    """What llama-server says from the end of --fit until it knows where every tensor goes."""
    with subprocess.Popen(
        [binaries / "llama-server", "-m", path, "--port", "0", "-lv", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
    ) as server:
        assert server.stdout is not None
        said: list[str] = []
        fitted = False
        for line in server.stdout:
            if "context size reduced" in line or fitted:
                said.append(line)
            fitted = fitted or "fitting params to free memory took" in line
            if fitted and "done_getting_tensors" in line:
                break
        server.kill()
    assert fitted, said[-3:]
    return "".join(said)


def words(params: Params) -> str:
    """As llama-fit-params prints them: trailing devices without layers are left out, and a split
    that says nothing."""
    said = f"-c {params.n_ctx} -ngl {-1 if params.n_gpu_layers is None else params.n_gpu_layers}"
    if params.tensor_split:
        split = re.sub(r"(,0)+$", "", ",".join(f"{n:g}" for n in params.tensor_split))
        said += f" -ts {split}" if "," in split else ""
    if params.overrides:
        said += (
            ' -ot "' + ",".join(f"{pattern}={buffer}" for pattern, buffer in params.overrides) + '"'
        )
    return said


@pytest.mark.llamacpp
@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("qwen3.5-4b-q4_k_m", (6,)),
        ("qwen3.5-4b-q4_k_m", (10,)),
        ("qwen3.6-27b-q4_k_m", (12,)),
        ("qwen3.6-27b-q4_k_m", (8, 12)),
        ("falcon-h1-7b-q4_k_m", (5,)),
        ("granite-4.0-h-small-q4_k_m", (16,)),
        ("jamba-1.5-mini-q4_k_m", (12, 16)),
    ],
)
def test_recurrent_states_are_counted_as_llama_fit_params_counts_them(
    name: str,
    gib: tuple[int, ...],
    binaries: pathlib.Path,
    mock_cuda: Callable[..., dict[str, str]],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice: once as used, and once as memory that is not free while it measures."""
    monkeypatch.setattr(context, "_outputs", lambda params, embeddings, n_batch, n_seq_max: n_batch)
    path = tmp_path / f"{name}.gguf"
    shutil.copy(next(HEADERS.parent.glob(f"**/{name}.gguf")), path)
    os.truncate(path, read_header(path).files[0].promised)
    devices = tuple(Device(f"CUDA{i}", size << 30, size << 30) for i, size in enumerate(gib))
    theirs = subprocess.run(
        [binaries / "llama-fit-params", "-m", path],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **mock_cuda(*devices)},
    )
    found = fit(
        Evaluator.of(
            autolayers.read_model(path), Machine(devices, {d.name: d.free for d in devices})
        ),
        Params(n_parallel=1),
        FULL,
    )
    assert found is not None
    assert words(found.params) == theirs.stdout.strip().splitlines()[-1]
