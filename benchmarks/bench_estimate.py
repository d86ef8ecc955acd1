"""What estimates and plans cost: python benchmarks/bench_estimate.py [RUNS]

One process, least time of RUNS, against `python -c pass` measured in turn with them; the process
that holds the model is warm, so an estimate's cost is that of one more question. A plan includes
reading the file. The 94-layer mixture of experts has the tensors of
fixtures/headers/qwen3-30b-a3b-q4_k_m.gguf, with their sizes, on 94 layers. Aims: 60 ms for an
estimate of 80 dense layers, 150 ms for one of 94 layers of experts, half a second for a plan.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ROOT / "fixtures" / "headers"
sys.path.insert(0, str(ROOT))

from autolayers import estimate, plan  # noqa: E402
from autolayers.flags.parse import parse  # noqa: E402
from autolayers.ggml.types import TYPES  # noqa: E402
from autolayers.gguf import TensorInfo, read_header  # noqa: E402
from autolayers.machine import Device  # noqa: E402
from autolayers.model import read_model  # noqa: E402

U32, I32, F32, BOOL, STR = 4, 5, 6, 7, 8
PASS = "python -c pass"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(v: object) -> bytes:
    if isinstance(v, bool):
        return struct.pack("<IB", BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II" if v >= 0 else "<Ii", U32 if v >= 0 else I32, v)
    if isinstance(v, float):
        return struct.pack("<If", F32, v)
    return struct.pack("<I", STR) + text(str(v))


def write_deeper(source: Path, path: Path, n_layer: int) -> None:
    """`source` on `n_layer` layers: its metadata but for arrays, and each layer a repetition of one
    of its own."""
    header = read_header(str(source))
    arch = header.metadata["general.architecture"]
    own = header.metadata[f"{arch}.block_count"]
    assert isinstance(own, int)
    pairs: dict[str, object] = {
        k: v for k, v in header.metadata.items() if isinstance(v, (bool, int, float, str))
    }
    pairs[f"{arch}.block_count"] = n_layer
    n_vocab = next(t.ne[1] for t in header.tensors.values() if t.name == "token_embd.weight")
    pairs.setdefault(f"{arch}.vocab_size", n_vocab)
    layers: dict[int, list[tuple[str, TensorInfo]]] = {}
    tensors: list[tuple[str, TensorInfo]] = []
    for info in header.tensors.values():
        found = re.fullmatch(r"blk\.(\d+)\.(.*)", info.name)
        if found:
            layers.setdefault(int(found[1]), []).append((found[2], info))
        else:
            tensors.append((info.name, info))
    for il in range(n_layer):
        tensors += [(f"blk.{il}.{name}", info) for name, info in layers[il % own]]
    body, offset = b"", 0
    numbers = {row.name: row.id for row in TYPES}
    for name, info in tensors:
        body += text(name) + struct.pack("<I4QIQ", 4, *info.ne, numbers[info.type], offset)
        offset += -(-info.n_bytes // 32) * 32
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
        file.write(b"".join(text(k) + value(v) for k, v in pairs.items()) + body)


def least(work: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(runs):  # in turn, so that all see the same machine
        for name, call in work.items():
            start = time.perf_counter()
            call()
            best[name] = min(best.get(name, 1e9), time.perf_counter() - start)
    return best


def main(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        deep = Path(folder, "moe-94.gguf")
        write_deeper(HEADERS / "qwen3-30b-a3b-q4_k_m.gguf", deep, 94)
        dense = HEADERS / "llama-3.3-70b-q4_k_m.gguf"
        work: dict[str, Callable[[], object]] = {
            PASS: lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)
        }
        aims: dict[str, int] = {}

        def planned(path: Path, devices: list[Device]) -> object:
            return plan(read_model(str(path)), ["-c", "8192"], devices=devices)

        cards = [Device.hypothetical("24GiB", f"CUDA{i}") for i in range(3)]
        small = [
            Device.hypothetical(size, f"CUDA{i}")
            for i, size in enumerate(("12GiB", "8GiB", "6GiB"))
        ]
        for what, path, n_layer, aim in (
            ("80 layers, dense", dense, 80, 60),
            ("94 layers, experts", deep, 94, 150),
        ):
            model = read_model(str(path))
            assert model.hparams.n_layer == n_layer
            for how, ngl, n in (
                ("all on 1 GPU", 999, 1),
                ("half on 1 GPU", n_layer // 2, 1),
                ("all on 3 GPUs", 999, 3),
            ):
                name = f"estimate, {what}, {how}"
                work[name] = partial(
                    estimate, model, parse(["-ngl", str(ngl), "-c", "8192"]).params, cards[:n]
                )
                aims[name] = aim
            for how, devices in (
                ("1 GPU", cards[:1]),
                ("3 GPUs", cards),
                ("3 GPUs too small", small),
            ):
                name = f"plan, {what}, {how}"
                work[name] = partial(planned, path, devices)
                aims[name] = 500
        best = least(work, runs)
        unit = best[PASS]
        for name, seconds in best.items():
            wanted = f"aim {aims[name]:4} ms" if name in aims else ""
            print(f"{name:46} {seconds * 1000:8.1f} ms {seconds / unit:6.1f} times   {wanted}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
