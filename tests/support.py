"""What many tests need: places, models of the fixtures, GPUs, and headers small enough to write
down."""

from __future__ import annotations

import ast
import atexit
import json
import os
import re
import shlex
import shutil
import socket
import struct
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeVar
from unittest import mock

import pytest

from autolayers.backends.ops import Matmul, Ops
from autolayers.builds import TODAY
from autolayers.cli import main
from autolayers.devices.cards import CARDS
from autolayers.flags.params import Params
from autolayers.flags.parse import Arguments, parse
from autolayers.flags.policy import Policy
from autolayers.gguf import BY_NAME, FileInfo, Header, TensorInfo, n_bytes, read_header
from autolayers.launch.command import WrappedCommand
from autolayers.launch.command import read as read_command
from autolayers.machine import Device, Machine
from autolayers.memory.companions import NONE, Companions
from autolayers.memory.weights import Placement, place_weights
from autolayers.model import Model, read_model
from autolayers.request import Request

TESTS = Path(__file__).parent
# the build that fixtures/truth and fixtures/more are of, where a row does not say another
RECORDED = 11549
# recorded answers, pages' examples and graphs are written again (CONTRIBUTING.md, Change a price)
WRITES = "AUTOLAYERS_WRITE" in os.environ
ROOT = TESTS.parent
FIXTURES = ROOT / "fixtures"
HEADERS = FIXTURES / "headers"


def in_plain_words(folder: Path) -> Path:
    """The folder by a path of plain letters, for a format that admits no others."""
    if re.fullmatch(r"[\w./-]+", str(folder), re.ASCII):
        return folder
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place)
    link = Path(place) / folder.name
    link.symlink_to(folder)
    return link


PLAIN = in_plain_words(HEADERS)
LOGS = TESTS / "logs"
MiB = 1 << 20
T = TypeVar("T")
# Of cases of one rule that are slow, and of tests that are seldom, one in so many a day
PARTS = 4

# Of the cards that there are, one of each size and kind
FEW_CARDS = {
    name: CARDS[name]
    for name in (
        "rtx-2060-6g",
        "rtx-3070",
        "rtx-4070-laptop",
        "rtx-3060",
        "rtx-4060-ti-16g",
        "rtx-3090",
        "rtx-4090",
        "rx-7900-xtx",
        "a100-80g",
        "m2-24g",
        "m2-max-64g",
        "m2-ultra-128g",
    )
}

# Llama 3.1 8B as Q4_K: 32 heads of 128, 8 of them with keys and values
LLAMA_OPS = Ops(
    512,
    8192,
    1,
    32,
    128,
    1024,
    True,
    (
        Matmul("q4_K", 4096, 4096),
        Matmul("q4_K", 4096, 1024),
        Matmul("q4_K", 4096, 14336),
        Matmul("q6_K", 14336, 4096),
    ),
    (Matmul("q6_K", 4096, 128256),),
)

# Of recorded launches every run takes a sample; all of them are compared with -m slow, as CI does
WHOLE = pytest.mark.parametrize(
    "whole",
    [pytest.param(False, id="sample"), pytest.param(True, id="whole", marks=pytest.mark.slow)],
)


def some_and_whole(argument: str, names: Iterable[str], n: int) -> pytest.MarkDecorator:
    """The same where names have a rule in common: a sample of every n-th in every run."""
    every = list(names)
    pairs = [*((name, False) for name in every[::n]), *(slow(name, True) for name in every)]
    return pytest.mark.parametrize((argument, "whole"), pairs)


def strings(text: str, words: Sequence[str]) -> list[tuple[int, str]]:
    """(line, string) of a module's strings but its docstrings, where one begins with one of these
    words (most modules have none, and parsing takes longer)."""
    if not re.search(rf"[\"'}}]\s*({'|'.join(map(re.escape, words))})", text):
        return []
    tree = ast.parse(text)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def split(line: str) -> WrappedCommand:
    """Return the command that `autolayers run` wraps in this line of a shell."""
    return read_command(shlex.split(line))


def retyped(name: str, type_: str, folder: Path) -> Path:
    """Write a fixture's header with another number, which nobody has, for a type of tensors; as
    long as the whole file."""
    head = bytearray((HEADERS / f"{name}.gguf").read_bytes())
    for info in read_header(HEADERS / f"{name}.gguf").tensors.values():
        if info.type == type_:
            # length, name, dimensions, extents; then the type
            key = struct.pack("<Q", len(info.name)) + info.name.encode()
            struct.pack_into("<I", head, head.index(key) + len(key) + 4 + 8 * info.n_dims, 77)
    path = folder / "new.gguf"
    path.write_bytes(head)
    os.truncate(path, json.loads((HEADERS / "sizes.json").read_text())[name])
    return path


def free_port() -> int:
    """Return a port of this machine on which nothing listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def slow(*case: Any, **more: Any) -> Any:
    """One case of a parametrised test that runs with -m slow: what a quicker case covers in every
    run."""
    return pytest.param(*case, marks=pytest.mark.slow, **more)


def requested(
    params: Params, policy: Policy, machine: Machine | None = None, companions: Companions = NONE
) -> Request:
    """The request of these flags and goals for a machine, by default one without devices."""
    return Request(Arguments(params), policy, TODAY, machine or Machine((), {}), None, companions)


def seldom(test: Callable[..., None]) -> Callable[..., None]:
    """A slow test of many seconds, which runs each fourth day (conftest.py)."""
    return pytest.mark.slow(pytest.mark.seldom(test))


def few(n: int, cases: Iterable[Any], parts: int = PARTS) -> list[Any]:
    """Cases of one rule: every n-th in every run; with -m slow those of the others whose day it is
    (of_today; `parts` is 1 for recorded launches: all)."""
    rows = (case if hasattr(case, "marks") else (case,) for case in cases)
    return few_rows(n, rows, parts)


def few_rows(n: int, rows: Iterable[Any], parts: int = PARTS) -> list[Any]:
    """The same of cases with several values."""
    cases = [row if hasattr(row, "marks") else pytest.param(*row) for row in rows]
    is_slow = [any(mark.name == "slow" for mark in case.marks) for case in cases]
    plain = [i for i, case in enumerate(cases) if not case.marks]
    quick = {*plain[::n], *(i for i, case in enumerate(cases) if case.marks and not is_slow[i])}
    today = of_today([i for i in range(len(cases)) if i not in quick], parts)
    return [
        case
        if i in quick or is_slow[i]
        else pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)
        for i, case in enumerate(cases)
        if i in quick or i in today
    ]


def of_today(cases: Sequence[T], parts: int = PARTS) -> Sequence[T]:
    """Every `parts`-th of these cases of one rule, each day the next ones (AUTOLAYERS_DAY, which
    conftest.py sets and prints; "all": all of them)."""
    day = os.environ.get("AUTOLAYERS_DAY", "0")
    return cases if day == "all" else cases[int(day) % parts :: parts]


def swept(cases: Iterable[T], parts: int, quick: Iterable[T] = ()) -> list[Any]:
    """The cases of a sweep for a parametrised test: the quick ones in every run; with -m slow those
    of the others whose day it is (of_today)."""
    always = list(quick)
    others = [case for case in cases if case not in always]
    return [*always, *map(slow, of_today(others, parts))]


def few_and_many(
    few_cases: int, many_cases: int, check: Callable[..., None], *strategies: Any
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Two tests of random cases, the same in each run: of a few in every run, of many with -m
    slow."""
    return _random(few_cases, check, *strategies), many(many_cases, check, *strategies)


def many(
    cases: int, check: Callable[..., None], *strategies: Any, parts: int = 1
) -> Callable[..., None]:
    """A test of random cases with -m slow, the first of `parts` equal parts; with
    AUTOLAYERS_DAY=all all of them."""
    parts = 1 if os.environ.get("AUTOLAYERS_DAY") == "all" else parts
    return pytest.mark.slow(_random(-(-cases // parts), check, *strategies))


def _random(cases: int, check: Callable[..., None], *strategies: Any) -> Callable[..., None]:
    from hypothesis import Phase, given, settings

    of = settings(derandomize=True, phases=[Phase.explicit, Phase.generate], max_examples=cases)
    return of(given(*strategies)(check))


def sample(groups: dict[str, list[T]], n: int) -> dict[str, list[T]]:
    """Every n-th row of each group, at least one of each; of the next group from the next row
    on."""
    return {name: rows[i % min(n, len(rows)) :: n] for i, (name, rows) in enumerate(groups.items())}


@cache
def model(name: str) -> Model:
    """A model of the fixtures by its file's name; "NAME:8" has its first eight layers alone, and is
    planned the sooner.
    """
    name, _, layers = name.partition(":")
    path = sorted(FIXTURES.glob(f"**/{name}.gguf"))[0]
    return first_layers(read_header(path), int(layers)) if layers else read_model(path)


def first_layers(whole: Header, n: int) -> Model:
    architecture = whole.metadata["general.architecture"]
    count = whole.metadata[f"{architecture}.block_count"]
    metadata = {
        key: value[:n] if isinstance(value, (list, tuple)) and len(value) == count else value
        for key, value in whole.metadata.items()
    }
    metadata[f"{architecture}.block_count"] = n
    tensors = {
        name: info
        for name, info in whole.tensors.items()
        if not (found := re.match(r"blk\.(\d+)\.", name)) or int(found[1]) < n
    }
    return Model(
        Header(whole.version, whole.alignment, metadata, tensors, whole.files), whole.files[0].path
    )


def gpu(gib: float, name: str | int = 0, **facts: Any) -> Device:
    """Return a device with that much memory, all free: CUDA0, CUDA1 by its number, or by its
    name."""
    size = round(gib * MiB * 1024)
    return Device(name if isinstance(name, str) else f"CUDA{name}", size, size, **facts)


def gpus(*mib: float) -> list[Device]:
    """Return CUDA0, CUDA1, ... with these MiB, all free."""
    return [Device(f"CUDA{i}", int(size * MiB), int(size * MiB)) for i, size in enumerate(mib)]


def hypothetical_gpus(mib: Iterable[float]) -> list[Device]:
    """Return CUDA0, CUDA1, ... with these MiB, as --gpu SIZE makes them."""
    return [Device.hypothetical(f"{size}MiB", f"CUDA{i}") for i, size in enumerate(mib)]


def header(
    architecture: str, tensors: dict[str, tuple[str, tuple[int, ...]]], **keys: object
) -> Header:
    """The header of a small model: tensors as name -> (type, dimensions), keys without the
    architecture, __ for a dot.
    """
    infos = {}
    offset = 0
    for name, (type_, dims) in tensors.items():
        ne = (*dims, 1, 1, 1, 1)[:4]
        infos[name] = TensorInfo(name, type_, ne, len(dims), offset, n_bytes(type_, ne))
        offset += -(-infos[name].n_bytes // 32) * 32
    base: dict[str, object] = {
        "context_length": 4096,
        "embedding_length": 256,
        "block_count": 2,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "feed_forward_length": 512,
        "vocab_size": 1000,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    base.update({key.replace("__", "."): value for key, value in keys.items()})
    metadata = {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in base.items()},
    }
    return Header(3, 32, metadata, infos, (FileInfo("m.gguf", None, offset),))


def blocks(n: int, type_: str = "f32", *more: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of n llama layers, for header()."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": (type_, (256, 1000)),
        "output_norm.weight": ("f32", (256,)),
    }
    for il in range(n):
        found[f"blk.{il}.attn_norm.weight"] = ("f32", (256,))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", *more):
            found[f"blk.{il}.{name}.weight"] = (type_, (256, 256))
    return found


def place(model: Model, words: str = "", *mib: int, load_mtp: bool = False) -> Placement:
    """Where the weights go with these words on GPUs of so many MiB (one of 8192)."""
    return place_weights(model, parse(words.split()).params, gpus(*(mib or (8192,))), load_mtp)


def gguf(name: str) -> tuple[bytes, int]:
    """The start of a fixture's file, or of one with its first layers alone ("NAME:8"), and the size
    of all of it."""
    source, _, layers = name.partition(":")
    path = next(path for path in sorted(FIXTURES.glob(f"**/headers/{source}.gguf")))
    whole, data = read_header(path), path.read_bytes()
    kept = list((model(name).header if layers else whole).tensors.values())
    first = next(iter(whole.tensors)).encode()
    head = bytearray(data[: data.index(struct.pack("<Q", len(first)) + first)])
    if layers:
        struct.pack_into("<Q", head, 8, len(kept))
        key = f"{whole.metadata['general.architecture']}.block_count".encode()
        struct.pack_into("<I", head, head.index(key) + len(key) + 4, int(layers))
    return with_tensors(bytes(head), kept, whole.alignment)


def with_tensors(head: bytes, tensors: Sequence[TensorInfo], alignment: int) -> tuple[bytes, int]:
    found, offset = bytearray(head), 0
    for tensor in tensors:
        found += (
            struct.pack("<Q", len(tensor.name))
            + tensor.name.encode()
            + struct.pack(
                f"<I{tensor.n_dims}QIQ",
                tensor.n_dims,
                *tensor.ne[: tensor.n_dims],
                BY_NAME[tensor.type].id,
                offset,
            )
        )
        offset += -(-n_bytes(tensor.type, tensor.ne) // alignment) * alignment
    return bytes(found), -(-len(found) // alignment) * alignment + offset


def until(condition: Callable[[], object], seconds: float = 300) -> None:
    """Waits for what another process or thread does; the limit only ends a wait in vain."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def write_gguf(path: Path, start: bytes, size: int) -> Path:
    """A file of that size, with a hole for the weights."""
    path.write_bytes(start)
    os.truncate(path, size)
    return path


def command(
    *words: str | os.PathLike[str],
    environ: Mapping[str, str] | None = None,
    cwd: str | Path = ROOT,
    input: bytes = b"",
    run: Callable[[list[str]], int] = main,
) -> CompletedProcess[bytes]:
    """`autolayers WORDS` in this process (tests/cli/test_cli.py starts each command once)."""
    made = [
        TextIOWrapper(BytesIO(given), "utf-8", errors)
        for given, errors in ((input, "strict"), (b"", "strict"), (b"", "backslashreplace"))
    ]
    before = Path.cwd()
    with (
        mock.patch.dict(os.environ, environ or {}, clear=environ is not None),
        mock.patch.multiple(sys, stdin=made[0], stdout=made[1], stderr=made[2]),
    ):
        os.chdir(cwd)
        try:
            code = run([str(word) for word in words])
            for stream in made[1:]:
                stream.flush()
        finally:
            os.chdir(before)
    out, err = (stream.buffer for stream in made[1:])
    assert isinstance(out, BytesIO) and isinstance(err, BytesIO)
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())


def says(*words: str | os.PathLike[str], **more: Any) -> CompletedProcess[str]:
    """The same, as text."""
    done = command(*words, **more)
    return CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def requantised(name: str, type_: str) -> tuple[bytes, int]:
    """As gguf(), with all matrices in another type."""
    start, _ = gguf(name)
    tensors = list(model(name).header.tensors.values())
    first = tensors[0].name.encode()
    head = start[: start.index(struct.pack("<Q", len(first)) + first)]
    fits = [
        tensor.n_dims > 1 and tensor.ne[0] % BY_NAME[type_].blck_size == 0 for tensor in tensors
    ]
    return with_tensors(
        head,
        [
            TensorInfo(tensor.name, type_ if other else tensor.type, tensor.ne, tensor.n_dims)
            for tensor, other in zip(tensors, fits, strict=True)
        ],
        model(name).header.alignment,
    )


def check_examples(page: Path, run: Callable[[list[str]], str]) -> int:
    """Runs each `$ autolayers WORDS` of a page of docs/ and compares what it shows; how many there
    are. With AUTOLAYERS_WRITE the page gets what is printed now."""
    text = page.read_text(encoding="utf-8")
    block = re.compile(
        r"^    \$ autolayers (.*)\n((?:    (?!\$ ).*\n|\n(?=    (?!\$ "
        r")))*)",
        re.MULTILINE,
    )
    count = 0

    def output(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        printed = run(shlex.split(found[1])).rstrip("\n") + "\n"
        return f"    $ autolayers {found[1]}\n" + textwrap.indent(printed, "    ")

    now = block.sub(output, text)
    if WRITES:
        page.write_text(now, encoding="utf-8")
    assert now == page.read_text(encoding="utf-8")
    return count
