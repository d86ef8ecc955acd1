"""Hostile input at random, for as long as you like: python tests/fuzz.py --minutes 10 --jobs 2

Every case must end in an answer or in an AutolayersError, within 10 s of an idle core and 300 MiB.
A case is its kind and a number: python tests/fuzz.py --case plan:1234 runs that one alone, with its
traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import math
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

from support import FIXTURES, gpus, with_tensors

from autolayers import cli, store
from autolayers.api import plan
from autolayers.devices import hypothetical, list_devices, measure
from autolayers.diagnosis.log import LogReader
from autolayers.errors import AutolayersError
from autolayers.flags.check import read
from autolayers.flags.formats import FORMATS
from autolayers.flags.own import COMMANDS, FLAGS
from autolayers.flags.parse import parse
from autolayers.flags.table import ARGUMENTS
from autolayers.gguf import ArrayInfo, Header, TensorInfo, read_header
from autolayers.machine import Host
from autolayers.model import Model
from autolayers.model.hparams import FIELDS
from autolayers.ollama import modelfile
from autolayers.sources import huggingface
from autolayers.sources.ollama.show import header as ollama_header

SECONDS, MEMORY = 10.0, 300 << 20
# cases of seconds each: up to 512 layers on up to 16 devices, advice and reasons
LONG = ("launches",)
OVER = "more than"  # what the words of a case that was too slow begin with
GIB = 1 << 30


class TooSlow(BaseException):
    """More processor time than a case may take; no `except Exception` stops it."""


# --- what is mutated


@cache
def paths() -> tuple[Path, ...]:
    """Headers of at most 25 KB: the plan of a large model may take seconds on several GPUs,
    whatever its numbers."""
    found = [
        path
        for path in sorted(FIXTURES.glob("**/*.gguf"))
        if read_header(path).data_offset <= 25_000
    ]
    return tuple(path for path in found if "split" not in path.name)


@cache
def whole(path: Path) -> bytes:
    """A fixture's header and a little of what follows."""
    return path.read_bytes()[: read_header(path).data_offset + 64]


@cache
def header(path: Path) -> Header:
    return read_header(path)


SIZES = (
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    12,
    31,
    63,
    64,
    255,
    256,
    512,
    1024,
    65535,
    65536,
    (1 << 20) + 1,
    30_000_000,
    1 << 30,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 8,
    (1 << 64) - 1,
)
HOSTILE = (
    "",
    "\x1b[2J\x1b]0;owned\x07",
    "a\nfits\n-ngl 99",
    "a\rb",
    "\u202egnp",
    "\x9b31m",
    "\u2028",
    "%s%n",
    "$(id)",
    "x" * 5000,
    "\ud800",
    "'\"\\",
    "²",
    "9" * 5000,
    "{",
    "NaN",
    "-inf",
    "1e999",
    "none",
    "\0",
)
VALUES: tuple[Any, ...] = (
    *SIZES,
    -1,
    -(1 << 31),
    1.5,
    0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    True,
    False,
    *HOSTILE,
    (),
    (0,),
    (1, 2, 3),
    (float("nan"),) * 4,
    (1 << 32, -1),
    (float("inf"),) * 64,
    (1,) * 64,
    ArrayInfo("u32", 5000),
    ArrayInfo("u32", 1 << 40),
    ArrayInfo("str", 1 << 22),
)


def mutated(data: bytearray, seed: random.Random) -> bytes:
    """A few bytes changed, numbers replaced by odd ones, pieces removed or repeated."""
    for _ in range(seed.choice((1, 1, 1, 2, 4))):
        at = (
            seed.randrange(len(data) + 1)
            if seed.random() < 0.8
            else seed.randrange(min(len(data), 64) + 1)
        )
        kind = seed.randrange(7)
        if kind == 0:
            data[at : at + 1] = bytes([seed.randrange(256)])
        elif kind == 1:
            data[at : at + 8] = struct.pack("<Q", seed.choice(SIZES))
        elif kind == 2:
            data[at : at + 4] = struct.pack("<I", seed.choice(SIZES) & 0xFFFFFFFF)
        elif kind == 3:
            del data[at : at + seed.choice((1, 4, 8, 100))]
        elif kind == 4:
            data[at:at] = seed.randbytes(seed.choice((1, 4, 8, 100)))
        elif kind == 5:
            other = seed.randrange(len(data) + 1)
            data[at:at] = data[other : other + seed.choice((8, 50, 400))]
        else:
            del data[at:]
    return bytes(data)


def machine(seed: random.Random) -> tuple[list[Any], Host]:
    sizes = [
        seed.choice((0, 1, 512, 2048, 8192, 24576, 1 << 20))
        for _ in range(seed.choice((0, 1, 1, 2)))
    ]
    ram = seed.choice((0, GIB, 32 * GIB, 1 << 50))
    return gpus(*sizes), Host(ram, ram, "given")


FEW_WORDS = (
    [],
    [],
    ["-c", "512"],
    ["-ngl", "99"],
    ["-c", "8192", "-np", "1"],
    ["-fa", "off"],
    ["-ncmoe", "2"],
    ["--strategy", "layers"],
    ["-ctk", "q8_0", "-ctv", "q8_0"],
    ["--embedding"],
    ["-sm", "none"],
    ["-sm", "tensor"],
    ["-sm", "tensor", "-ts", "2,1"],
    ["--spec-type", "draft-mtp"],
    ["-ub", "64", "-b", "128"],
    ["--ctx", "max"],
    ["-no-kvu", "-np", "3"],
)


def planned(model: Model, seed: random.Random) -> None:
    devices, host = machine(seed)
    answer = plan(model, seed.choice(FEW_WORDS), devices, host)
    json.dumps(answer.to_dict())


# --- the kinds of cases


def reading(seed: random.Random) -> None:
    """Headers with bytes changed."""
    data = mutated(bytearray(whole(seed.choice(paths()))), seed)
    header = read_header(io.BytesIO(data))
    assert isinstance(header.warnings, tuple)


def reading_and_plan(seed: random.Random) -> None:
    """The same, and a plan of what can be read."""
    planned(
        Model(
            read_header(io.BytesIO(mutated(bytearray(whole(seed.choice(paths()))), seed))), "m.gguf"
        ),
        seed,
    )


def _changed(seed: random.Random) -> Model:
    """A fixture with keys that its architecture reads changed."""
    found = header(seed.choice(paths()))
    metadata = dict(found.metadata)
    name = metadata["general.architecture"]
    own = [key for key in metadata if not key.startswith("tokenizer.")] + ["tokenizer.ggml.tokens"]
    for _ in range(seed.choice((1, 1, 2, 4))):
        key = (
            seed.choice(own)
            if seed.random() < 0.6
            else f"{name}.{seed.choice(list(FIELDS.values()))[0]}"
        )
        metadata[key] = seed.choice(SIZES if seed.random() < 0.5 else VALUES)
    return Model(
        Header(found.version, found.alignment, metadata, found.tensors, found.files, found.notes),
        "m.gguf",
    )


def hyperparameters(seed: random.Random) -> None:
    """Keys with values that no model has."""
    _changed(seed)


def hyperparameters_and_plan(seed: random.Random) -> None:
    """The same, and a plan of what is a model all the same."""
    planned(_changed(seed), seed)


NAMES = [
    *(name for row in ARGUMENTS for name in (*row.names, *row.negated)),
    *(name for flag in FLAGS for name in flag.names if name not in ("--measure", "--help", "-h")),
]
WORDS = (
    "",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "16k",
    "max",
    "all",
    "auto",
    "none",
    "on",
    "2,1",
    "q8_0",
    "CUDA0",
    "24GiB",
    "CUDA0=1GiB",
    "a=b",
    "blk.*=CPU",
    "llama.x=int:5",
    "x.gguf",
    "1e30",
    *map(str, SIZES),
    *HOSTILE,
)


# flags that lead to other machines
ASK_OTHERS = {"--rpc", "-hf", "-hfr", "--hf-repo", "-mu", "--model-url"}


def _words(seed: random.Random) -> list[str]:
    words = []
    for _ in range(seed.randrange(8)):
        name = seed.choice(NAMES)
        if seed.random() < 0.1:
            at = seed.randrange(len(name))
            name = name[:at] + seed.choice(("", "-", "_", "=", "x", "\x1b")) + name[at + 1 :]
        words.append(name + seed.choice(("", "", "", "=" + seed.choice(WORDS))))
        if seed.random() < 0.7:
            words.append(seed.choice(WORDS))
    return words


def words(seed: random.Random) -> None:
    """Flags with values of all kinds, as each command reads them."""
    read(
        seed.choice([name for name, command in COMMANDS.items() if command.llama]), _words(seed), {}
    )


def commands(seed: random.Random) -> str:
    """The whole command with such flags: what it prints cannot steer a terminal."""
    given = _words(seed)
    while {word.partition("=")[0] for word in given} & ASK_OTHERS:
        given = _words(seed)
    words = [seed.choice(("plan", "plan", "inspect", "sweep")), str(seed.choice(paths())), *given]
    if words[0] == "plan":
        words[:1] = ["--gpu", seed.choice(("2GiB", "8GiB,4GiB"))]
    if words[0] == "sweep":
        words += ["--contexts", "4096", "--types", "f16", "--gpus", "8GiB"]
    return _command(words)


def _command(words: list[str], environ: Mapping[str, str] = {}) -> str:
    """Its exit code in words."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, environ),
    ):
        code = cli.main(words)
    assert code in (0, 1, 2, 3, 4, 5), code
    for stream in (out, err):
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        text = stream.buffer.getvalue().decode("utf-8", "surrogateescape")
        assert stream is out or text.replace("\n", "").isprintable(), text
    return f"exit {code}"


BACKENDS = ("cuda", "rocm", "vulkan", "metal", "sycl", "cann", "opencl", "musa")
SOME_WORDS = (
    *FEW_WORDS,
    ["-ot", "^(.*)*$x=CPU"],
    ["-ot", r"blk\.(\d+)\.ffn_.*=CPU"],
    ["-ts", "3,1,0,2"],
    ["-sm", "row"],
    ["--users", "3"],
    ["--workload", "agent"],
    ["--kv-types", "f16,q8_0"],
    ["--margin", "0"],
    ["-nkvo"],
    ["-c", "1000000"],
    ["-np", "64"],
    ["--swa-full"],
    ["-cmoe"],
    ["--llama-build", "b6000"],
)


@cache
def _every_path() -> tuple[Path, ...]:
    return tuple(
        path for path in sorted(FIXTURES.glob("**/headers/*.gguf")) if "split" not in path.name
    )


# of GGUF's types of numbers
_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def _longer(head: bytearray, key: bytes, before: int, layers: int) -> bytearray:
    """A header whose list of a value per layer, if its values are numbers, repeats."""
    at = head.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
    kind, of, count = struct.unpack_from("<IIQ", head, at)
    start = at + 16
    if kind != 9 or of not in _BYTES or count != before:  # GGUF_TYPE_ARRAY
        return head
    end = start + before * _BYTES[of]
    size = layers * _BYTES[of]
    values = (bytes(head[start:end]) * (layers // before + 1))[:size]
    struct.pack_into("<Q", head, at + 8, layers)
    return head[:start] + values + head[end:]


def deeper(path: Path, layers: int) -> bytes:
    """A fixture's header with its blocks repeated: block_count and the lists of a value per layer
    too."""
    found, data = header(path), path.read_bytes()
    first = next(iter(found.tensors)).encode()
    head = bytearray(data[: data.index(struct.pack("<Q", len(first)) + first)])
    key = f"{found.metadata['general.architecture']}.block_count".encode()
    at = head.index(key) + len(key) + 4
    before = struct.unpack_from("<I", head, at)[0]
    struct.pack_into("<I", head, at, layers)
    for key, value in found.metadata.items():
        if isinstance(value, tuple) and len(value) == before:
            head = _longer(head, key.encode(), before, layers)
    tensors = []
    for tensor in found.tensors.values():
        start, dot, rest = tensor.name.removeprefix("blk.").partition(".")
        if not tensor.name.startswith("blk.") or not start.isdecimal() or not dot:
            tensors.append(tensor)
            continue
        tensors += [
            TensorInfo(f"blk.{il}.{rest}", tensor.type, tensor.ne, tensor.n_dims)
            for il in range(int(start), layers, max(1, before))
        ]
    struct.pack_into("<Q", head, 8, len(tensors))
    return with_tensors(bytes(head), tensors, found.alignment)[0]


def launches(seed: random.Random) -> str:
    """The whole command with all that it asks: advice, reasons and formats; 0 to 16 devices of
    every backend; headers as they are, with bytes changed, and with up to 512 layers (2 MB)."""
    path, kind = seed.choice(_every_path()), seed.randrange(4)
    file = Path(_folder(), "m.gguf")
    data = whole(path)
    if kind == 0:
        data = mutated(bytearray(data), seed)
    elif kind == 1:
        with contextlib.suppress(ValueError, KeyError):  # a type that only ik_llama.cpp has
            data = deeper(path, seed.choice((1, 33, 40, 100, 300, 512)))
            data = data if len(data) < 2_000_000 else whole(path)
    file.write_bytes(data)
    sizes = [
        seed.choice(("1MiB", "200MiB", "1GiB", "2GiB", "8GiB", "24GiB", "80GiB"))
        for _ in range(seed.choice((0, 1, 1, 2, 2, 3, 4, 8, 16)))
    ]
    given = (
        ["--gpu", ",".join(sizes), "--backend", seed.choice(BACKENDS)]
        if sizes
        else ["-dev", "none"]
    )
    form = seed.choice(("text", "text", "json", "flags", "number", *FORMATS))
    return _command(
        [
            "plan",
            str(file),
            *given,
            "--ram",
            seed.choice(("1GiB", "8GiB", "64GiB")),
            "--format",
            form,
            *seed.choice(SOME_WORDS),
        ]
    )


def _json(seed: random.Random, depth: int = 0) -> Any:
    """A value of JSON that may be anything."""
    kind = seed.randrange(8 if depth < 4 else 5)
    if kind == 5:
        return [_json(seed, depth + 1) for _ in range(seed.randrange(4))]
    if kind > 5:
        keys = (
            "build",
            "backend",
            "flags",
            "differences",
            "schema",
            "machine",
            "ram",
            "CUDA0",
            *HOSTILE,
        )
        return {seed.choice(keys): _json(seed, depth + 1) for _ in range(seed.randrange(6))}
    return seed.choice((*SIZES, *HOSTILE, None, True, 1e308, float("inf"), float("nan"), -5))


def _spoiled(value: Any, seed: random.Random) -> Any:
    """JSON with a few of its values replaced."""
    if seed.random() < 0.004:
        return _json(seed)
    if isinstance(value, dict):
        return {
            seed.choice(HOSTILE) if seed.random() < 0.002 else key: _spoiled(inner, seed)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_spoiled(inner, seed) for inner in value]
    return value


def answers(seed: random.Random) -> None:
    """What an Ollama server says of a model."""
    found = header(seed.choice(paths()))
    info = {
        key: list(value)
        if isinstance(value, tuple)
        else value
        if not isinstance(value, ArrayInfo)
        else ["x"] * min(value.length, 3)
        for key, value in found.metadata.items()
    }
    tensors = [
        {"name": t.name, "type": t.type.upper(), "shape": list(t.ne[: t.n_dims])}
        for t in list(found.tensors.values())[:40]
    ]
    answer = _spoiled(
        json.loads(
            json.dumps({"model_info": info, "tensors": tensors, "details": {"format": "gguf"}})
        ),
        seed,
    )
    if isinstance(answer, dict):
        model = Model(ollama_header("m:latest", answer), "ollama:m")
        if seed.random() < 0.05:
            planned(model, seed)


@cache
def _folder() -> str:
    return tempfile.mkdtemp(prefix="autolayers-fuzz-")


def states(seed: random.Random) -> None:
    """Files of the state directory."""
    environ = {"XDG_STATE_HOME": _folder()}
    good = [
        {
            "build": 1,
            "backend": "CUDA",
            "flags": ["-ngl", "3"],
            "differences": {"CUDA0": 5},
            "date": "2026",
        }
    ]
    value = _spoiled(good, seed) if seed.random() < 0.5 else _json(seed)
    data = json.dumps(value).encode("utf-8", "surrogatepass")
    if seed.random() < 0.3:
        data = mutated(bytearray(data), seed)
    if seed.random() < 0.02:
        data = b"[" * 200_000
    kinds = store.Row.__subclasses__()
    for name in ("measured.json", *(kind.FILE.format("x") for kind in kinds)):
        path = Path(_folder(), "autolayers", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for kind in kinds:
        store.read(kind, environ, "x")
    measure.load(environ)


LISTING = b"Available devices:\n  CUDA0: NVIDIA GeForce RTX 3090 (24115 MiB, 23800 MiB free)\n"
MODELFILE = (
    b'FROM x.gguf\nPARAMETER num_ctx 8192\nSYSTEM """a\nb"""\n'
    b'MESSAGE user hi\nPARAMETER stop "<|end|>"\n'
)
CONFIG = b"[*]\nctx-size = 8192\n[default]\nn-gpu-layers = 9\nflash-attn = on\n"


@cache
def _logs() -> tuple[bytes, ...]:
    return tuple(
        path.read_bytes()[:20_000]
        for path in sorted((Path(__file__).parent / "logs").glob("*.log"))
    )


def texts(seed: random.Random) -> None:
    """Words of other programs and files for people: logs, lists of devices, Modelfiles, config
    files, names of models.
    """
    kind = seed.randrange(5)
    if kind == 0:
        reader = LogReader()
        reader.feed(mutated(bytearray(seed.choice(_logs())), seed))
        reader.finish()
    elif kind == 1:
        list_devices.parse(mutated(bytearray(LISTING), seed).decode("utf-8", "replace"))
    elif kind == 2:
        found = modelfile.parse(mutated(bytearray(MODELFILE), seed))
        modelfile.rewrite(MODELFILE, {"num_gpu": seed.choice(SIZES[:9])})
        found.parameters()
    elif kind == 3:
        path = Path(_folder(), "config.ini")
        path.write_bytes(mutated(bytearray(CONFIG), seed))
        read("plan", ["m"], {"XDG_CONFIG_HOME": "/nonexistent"})
        parse([], config_files=[str(path)])
    else:
        name = mutated(bytearray(b"hf:user/repo:Q4_K_M"), seed).decode("utf-8", "surrogateescape")
        if name.startswith("hf:"):
            huggingface.choose(
                huggingface.parse_name(name)[0], [name, "a-Q4_K_M.gguf", "b-00001-of-00002.gguf"]
            )
        hypothetical(
            mutated(bytearray(b"2x24GiB,rtx-3090,12 GB"), seed).decode("utf-8", "surrogateescape")
        )


LABELLED = [
    json.loads(line)["log"]
    for name in ("failures", "unseen", "pasted")
    for line in (Path(__file__).parent / "diagnosis" / f"{name}.jsonl")
    .read_text("utf-8")
    .splitlines()
]
AROUND = ([], ["--json"], ["--gpu", "8GiB", "--ram", "32GiB"], ["-c", "8192", "-ngl", "99"])


def explaining(seed: random.Random) -> str:
    """The whole of explain, for lines of several logs, one after the other, with bytes changed and
    hostile words."""
    lines: list[str] = []
    for _ in range(seed.choice((1, 1, 2, 3))):
        log = seed.choice(LABELLED).splitlines()
        at = seed.randrange(len(log))
        lines += log[at:] if seed.random() < 0.3 else log
    for _ in range(seed.choice((0, 0, 1, 3))):
        lines.insert(seed.randrange(len(lines) + 1), seed.choice((*HOSTILE, *map(str, SIZES))))
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    file = Path(_folder(), "server.log")
    file.write_bytes(mutated(bytearray(data), seed) if seed.random() < 0.7 else data)
    return _command(["explain", str(file), *seed.choice(AROUND)])


MACHINE = {
    "devices": [
        {"card": "rtx-3090"},
        {
            "name": "Vulkan0",
            "backend": "Vulkan",
            "total": 12 * GIB,
            "free": 11 * GIB,
            "limits": {"max_memory_allocation_size": 4 * GIB},
        },
        {
            "name": "CUDA1",
            "total": 8 * GIB,
            "bandwidth": 360e9,
            "link": 12e9,
            "fp16_tflops": 51.0,
            "compute_capability": "8.6",
            "n_sm": 28,
        },
    ],
    "host": {
        "total": 64 * GIB,
        "available": 60 * GIB,
        "bandwidth": 50e9,
        "cores": 8,
        "threads": 16,
        "numa": 1,
    },
    "measured": [
        {
            "kind": "tg",
            "class": "MoE in RAM",
            "backend": "CUDA",
            "build": 11549,
            "ratio": 0.81,
            "n": 3,
            "date": "2026-11-20",
        }
    ],
}
FILE_NAMES = [
    name for name in HOSTILE if 0 < len(name) < 200 and not {"/", "\0", "\ud800"} & set(name)
]


def machines(seed: random.Random) -> str:
    """A plan in every format for a machine file of anybody, of a model whose file has a hostile
    name."""
    machine = json.loads(json.dumps(MACHINE))
    machine["devices"] = seed.sample(machine["devices"], seed.randrange(1, 3))
    for each in (*machine["devices"], machine["host"], *machine["measured"]):
        if seed.random() < 0.3:
            each[seed.choice([*each, seed.choice(HOSTILE)])] = _json(seed)
    file = Path(_folder(), "machine.json")
    file.write_bytes(json.dumps(machine).encode("utf-8", "surrogatepass"))
    model = Path(_folder(), f"{seed.choice(('m', *FILE_NAMES))}.gguf")
    model.write_bytes(whole(seed.choice(paths())))
    try:
        return _command(
            [
                "plan",
                str(model),
                "--machine",
                str(file),
                "--format",
                seed.choice(("text", "json", "flags", *FORMATS)),
                *seed.choice(FEW_WORDS),
            ]
        )
    finally:
        model.unlink()


def starts(seed: random.Random) -> str:
    """run --dry-run beside plans of earlier launches that anybody may have written."""
    environ = {"XDG_STATE_HOME": _folder()}
    words = [
        "run",
        "--dry-run",
        "--gpu",
        "8GiB",
        "--ram",
        "32GiB",
        *seed.choice(FEW_WORDS),
        "--",
        "llama-server",
        "-m",
        str(seed.choice(paths()[:8])),
    ]
    kept = Path(_folder(), "autolayers", "plans", "kept.json")
    kept.parent.mkdir(parents=True, exist_ok=True)
    good = json.loads(_kept(words[-1]))
    value = _spoiled(good, seed) if seed.random() < 0.7 else _json(seed)
    data = json.dumps(value).encode("utf-8", "surrogatepass")
    kept.write_bytes(mutated(bytearray(data), seed) if seed.random() < 0.5 else data)
    return _command(words, environ)


@cache
def _kept(model: str) -> str:
    """The state file of a launch of this model."""
    environ = {"XDG_STATE_HOME": tempfile.mkdtemp(prefix="kept-", dir=_folder())}
    _command(
        ["run", "--dry-run", "--gpu", "8GiB", "--ram", "32GiB", "--", "llama-server", "-m", model],
        environ,
    )
    file = Path(environ["XDG_STATE_HOME"], "autolayers", "plans", "kept.json")
    return file.read_text("utf-8") if file.is_file() else "[]"


def headers(seed: random.Random) -> str:
    """`inspect`, and the plan's number of layers, of a header with bytes changed or keys that no
    model has."""
    file = Path(_folder(), "m.gguf")
    data = bytearray(whole(seed.choice(paths())))
    if seed.random() < 0.3:  # a value of the metadata, which the header's own lengths still fit
        at = seed.randrange(24, len(data))
        data[at : at + 4] = struct.pack("<I", seed.choice(SIZES) & 0xFFFFFFFF)[: len(data) - at]
        file.write_bytes(data)
    else:
        file.write_bytes(mutated(data, seed))
    if seed.random() < 0.9:
        return _command(["inspect", str(file), *seed.choice(([], [], ["--json"]))])
    return _command(["plan", str(file), "--gpu", "8GiB", "--ram", "32GiB", "-q"])


SETTINGS = {
    "LLAMA_ARG_N_GPU_LAYERS": WORDS,
    "LLAMA_ARG_CTX_SIZE": WORDS,
    "LLAMA_ARG_CACHE_TYPE_K": WORDS,
    "LLAMA_ARG_FLASH_ATTN": WORDS,
    "LLAMA_CACHE": WORDS,
    "CUDA_VISIBLE_DEVICES": WORDS,
    "COLUMNS": WORDS,
    "TERM": WORDS,
    "NO_COLOR": WORDS,
    "FORCE_COLOR": WORDS,
    "HOME": WORDS,
    "XDG_CACHE_HOME": WORDS,
    "HF_ENDPOINT": WORDS,
    "OLLAMA_HOST": ("127.0.0.1:1", "[", "http://[", *HOSTILE),
}


def settings(seed: random.Random) -> str:
    """Short commands with an environment, a config file and state files that anybody may have
    written."""
    home = Path(_folder(), "home")
    environ = {"XDG_STATE_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    for name in seed.sample(list(SETTINGS), seed.randrange(4)):
        value = seed.choice(SETTINGS[name])
        if "\0" not in value and "\ud800" not in value:
            environ[name] = value
    for name in ("autolayers/measured.json", "llama.cpp/config.ini"):
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        good = CONFIG if name.endswith(".ini") else json.dumps(MACHINE["measured"]).encode()
        if seed.random() < 0.2 and name.endswith(".json"):
            good = json.dumps(_json(seed)).encode("utf-8", "surrogatepass")
        file.write_bytes(mutated(bytearray(good), seed))
    kind, model = seed.randrange(20), str(seed.choice(paths()))
    if kind < 2:
        return _command(["measured", *seed.choice(([], ["--json"]))], environ)
    if kind < 19:
        return _command(["inspect", model, *seed.choice(([], ["--json"]))], environ)
    return _command(["plan", model, "--gpu", "8GiB", "--ram", "32GiB", "-q"], environ)


# and its share of the time
KINDS: dict[str, tuple[Callable[[random.Random], str | None], float]] = {
    "reading": (reading, 1),
    "reading-plan": (reading_and_plan, 2),
    "keys": (hyperparameters, 1),
    "keys-plan": (hyperparameters_and_plan, 3),
    "words": (words, 1),
    "commands": (commands, 2),
    "answers": (answers, 1),
    "states": (states, 1),
    "texts": (texts, 1),
    "launches": (launches, 4),
    "explaining": (explaining, 3),
    "machines": (machines, 2),
    "starts": (starts, 2),
    "headers": (headers, 3),
    "settings": (settings, 1),
}
# the command line from words to exit code
WHOLE = ("commands", "launches", "explaining", "machines", "starts", "headers", "settings")


# --- limits


def _slow(*_: object) -> None:
    raise TooSlow


def slowness() -> float:
    """How much slower than a core of its own this processor is now, 1 or more: others may use its
    other half."""
    begun, total = time.process_time(), 0
    for i in range(50_000):
        total += i * i
    return max(1.0, (time.process_time() - begun) / 0.0025)


def outcome(kind: str, number: int, slower: float = 1.0) -> tuple[str, str]:
    """("ok", a command's exit code or the error's name, "") or ("!", what must not happen); a case
    has `slower` times its limit."""
    run = KINDS[kind][0]
    seed = random.Random(f"{kind}:{number}")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, SECONDS * slower)
    try:
        return run(seed) or "ok", ""
    except AutolayersError as error:
        return type(error).__name__, ""
    except TooSlow:
        where = "".join(traceback.format_exc().splitlines(True)[-7:-1])
        return "!", f"{OVER} {SECONDS:g} s\n{where}"
    except BaseException as error:
        return "!", "".join(traceback.format_exception(error)[-4:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Budget(NamedTuple):
    """What a worker may spend: a number of cases of each kind, or all that `seconds` of wall time
    allow."""

    cases: Mapping[str, int] = {}
    seconds: float = math.inf
    # times the limit of a case: many where a limit shall only end what hangs
    patience: float = 1.0


def work(pipe: Any, first: int, step: int, budget: Budget, kinds: list[str]) -> None:
    """Cases until the budget is spent; says what it begins with, so that a hang that no signal ends
    has a name."""
    signal.signal(signal.SIGPROF, _slow)
    gc.set_threshold(700, 10, 10)  # Python's own, not that of the tests
    forked = _memory("VmRSS:")  # what the parent had
    Path("/proc/self/clear_refs").write_text("5")
    spent = dict.fromkeys(kinds, 0.0)
    counts: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
    number = dict.fromkeys(kinds, first)
    for kind in kinds:  # what is read once and kept is no case's
        outcome(kind, -1)
    header_cache = [header(path) for path in paths()], [whole(path) for path in paths()]
    last = {kind: first + step * budget.cases.get(kind, sys.maxsize) for kind in kinds}
    end = time.monotonic() + budget.seconds
    while time.monotonic() < end:
        left = [kind for kind in kinds if number[kind] < last[kind]]
        if not left:
            break
        kind = min(left, key=lambda kind: spent[kind] / KINDS[kind][1])
        begun, slower = time.monotonic(), slowness() * budget.patience
        for _ in range(20 if kind not in LONG else 1):
            if number[kind] >= last[kind]:
                break
            pipe.send(("at", kind, number[kind]))
            name, trouble = outcome(kind, number[kind], slower)
            # once more: others may have had the processor's caches
            if trouble.startswith(OVER):
                name, trouble = outcome(kind, number[kind], slowness() * budget.patience)
            if trouble:
                pipe.send(("bad", kind, number[kind], trouble))
            counts[kind][name] = counts[kind].get(name, 0) + 1
            number[kind] += step
            if time.monotonic() > end:
                break
        spent[kind] += time.monotonic() - begun
    del header_cache
    pipe.send(("done", counts, _memory("VmHWM:") - forked))


def _memory(field: str) -> int:
    """MiB of this process: VmRSS: now, VmHWM: at most since it was reset (proc(5))."""
    return int(Path("/proc/self/status").read_text().partition(field)[2].split()[0]) >> 10


def run(
    budget: Budget, jobs: int, first: int, kinds: list[str]
) -> tuple[dict[str, dict[str, int]], list[str], int]:
    """(how the cases of each kind ended, what must not happen, the largest worker in MiB); cases
    are numbered from `first` on."""
    context = get_context("fork")
    workers: dict[Any, tuple[Any, list[Any]]] = {}
    for job in range(jobs):
        ours, theirs = context.Pipe(False)
        process = context.Process(
            target=work, args=(theirs, first + job, jobs, budget, kinds), daemon=True
        )
        process.start()
        theirs.close()
        workers[ours] = process, ["nothing", 0]
    totals: dict[str, dict[str, int]] = {kind: {} for kind in kinds}
    bad: list[str] = []
    peak = 0
    while workers:
        ready = wait(list(workers), timeout=600)
        for pipe in ready or list(workers):
            process, at = workers[pipe]
            try:
                message = pipe.recv() if ready else None
            except EOFError:
                message = None
            if message is None:
                bad.append(f"{at[0]}:{at[1]}: the process {'ended' if ready else 'hangs'}")
                process.kill()
                del workers[pipe]
            elif message[0] == "at":
                at[:] = message[1:]
            elif message[0] == "bad":
                bad.append(f"{message[1]}:{message[2]}: {message[3]}")
            else:
                for kind, counts in message[1].items():
                    for name, count in counts.items():
                        totals[kind][name] = totals[kind].get(name, 0) + count
                peak = max(peak, message[2])
                del workers[pipe]
    return totals, bad, peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--case", help="KIND:NUMBER, one case")
    given = parser.parse_args()
    if given.case:
        kind, _, number = given.case.partition(":")
        signal.signal(signal.SIGPROF, _slow)
        name, trouble = outcome(kind, int(number))
        print(name, trouble)
        return bool(trouble)
    totals, bad, peak = run(
        Budget(seconds=60 * given.minutes), given.jobs, given.first, given.only.split(",")
    )
    for kind, counts in totals.items():
        print(
            f"{kind}: {sum(counts.values())} cases:",
            ", ".join(f"{name} {count}" for name, count in sorted(counts.items())),
        )
    print(
        f"{sum(sum(counts.values()) for counts in totals.values())} cases, {len(bad)} bad, peak "
        f"{peak} MiB"
    )
    for line in bad[:20]:
        print(line)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
