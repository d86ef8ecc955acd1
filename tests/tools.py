#!/usr/bin/env python3
"""Programs of llama.cpp started with random words, their logged buffers against the prediction.

    python tests/tools.py BIN 40 7    # 40 launches of each, seed 7; BIN: tests/build_llamacpp.sh

The devices are simulated (fixtures/recorder/mock_cuda.py), the models are headers with a hole for
the weights, and each program is ended once its graphs are reserved. llama-cpp-python and KoboldCpp
are a user of the library that fills its parameters as they do (engines/library_user.cpp).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import companion_files  # noqa: E402
from support import FIXTURES, RECORDED  # noqa: E402

from autolayers.builds import Build  # noqa: E402
from autolayers.diagnosis.log import LogReader  # noqa: E402
from autolayers.engines import engine  # noqa: E402
from autolayers.errors import LaunchRefused  # noqa: E402
from autolayers.flags.parse import parse  # noqa: E402
from autolayers.gguf import read_header  # noqa: E402
from autolayers.launch import bench  # noqa: E402
from autolayers.launch.verify import compare  # noqa: E402
from autolayers.machine import Device  # noqa: E402
from autolayers.memory.breakdown import Breakdown  # noqa: E402
from autolayers.memory.companions import NONE, Companions  # noqa: E402
from autolayers.memory.estimate import Estimator  # noqa: E402
from autolayers.model import Model, read_model  # noqa: E402

TRIES = 6
MODELS = (
    "gemma2-dense",
    "phi3-dense",
    "qwen3-0.6b-q8_0",
    "qwen2.5-0.5b",
    "llama-moe",
    "qwen3moe-moe",
    "gemma3-dense",
    "gpt-oss-moe",
    "qwen35-dense",
    "mamba2-dense",
    "falcon-h1-dense",
    "deepseek2-moe",
    "lfm2-dense",
    "granite_swa-dense",
)
GPUS = ((24,), (24,), (8, 16), (12, 12, 12))  # GiB
# (how often, words of which one is said), as llama-server has them
WORDS = (
    (1.0, ("-ngl 99", "-ngl 99", "-ngl 99", "-ngl 3", "-ngl 1", "-ngl 0")),
    (0.5, ("-ub 64", "-ub 128", "-ub 1024", "-b 256", "-b 4096 -ub 2048", "-b 300")),
    (0.4, ("-fa on", "-fa off")),
    (0.3, ("-ctk q8_0 -ctv q8_0 -fa on", "-ctk q4_0 -ctv q4_0 -fa on", "-ctk bf16 -ctv bf16")),
    (0.15, ("-nkvo",)),
    (0.15, ("--no-op-offload",)),
    (0.2, ("-ncmoe 1", "-cmoe")),
)
CONTEXTS = (512, 1024, 3000, 4096, 8192, 20000)
BENCHED = ("-p 512 -n 0", "-p 700 -n 0", "-p 0 -n 64", "-p 0 -n 1000", "-p 0 -n 0 -pg 900,100")
SPLITS = ("-ts 1,1", "-ts 3,1", "-sm none")


@dataclass(frozen=True)
class Launch:
    """What a program is started with, and what is planned: llama-server's words."""

    words: list[str]
    planned: list[str]


@dataclass(frozen=True)
class Outcome:
    launch: str
    verdict: str  # equal, over, under, refused, unlike (one of the two refuses)
    exact: bool
    parts: tuple[str, ...] = ()


def _random_words(dice: random.Random, gpus: int) -> list[str]:
    words = ["-c", str(dice.choice(CONTEXTS))]
    for often, choices in WORDS:
        words += dice.choice(choices).split() if dice.random() < often else []
    return words + (dice.choice(SPLITS).split() if gpus > 1 and dice.random() < 0.5 else [])


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    """Each flag with the word behind it."""
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-"):
            yield word, value


def _without_experts(words: list[str]) -> list[str]:
    ends = [at for at, word in enumerate(words) if word in ("-cmoe", "-ncmoe")]
    return words[: ends[0]] if ends else words


def _as_it_is(dice: random.Random, words: list[str]) -> Launch:
    return Launch([*words, "-lm", "none", "-fit", "off", "-lv", "4", "--no-warmup"], words)


def _mtmd(dice: random.Random, words: list[str]) -> Launch:
    """Its warm-up reserves the projector's graph; experts of zeros end it on the CPU."""
    launch = _as_it_is(dice, _without_experts(words))
    return Launch(launch.words[:-1], launch.planned)


def _perplexity(dice: random.Random, words: list[str]) -> Launch:
    """Half of them without a context: 512 is its own."""
    return _as_it_is(dice, words[2:] if dice.random() < 0.5 else words)


def _bench(dice: random.Random, words: list[str]) -> Launch:
    """One test, as each has a context of its own."""
    own = ["-r", "1", *dice.choice(BENCHED).split()]
    own += dice.choice(([], [], ["-d", "3000"]))
    said = dict(_pairs(words[2:]))
    for word, value in said.items():
        if word in ("-nkvo", "--no-op-offload"):
            own += ["-nopo" if word == "--no-op-offload" else word, "1"]
        elif word == "-cmoe":
            own += ["-ncmoe", "99"]
        else:
            own += [word, value.replace(",", "/")]
    return Launch([*own, "-lm", "none", "-v", "--no-warmup"], list(bench.as_server(own)))


def _library(dice: random.Random, words: list[str]) -> Launch:
    """What Llama() of llama-cpp-python sets: one sequence, flash attention off unless asked for."""
    own = {"-b": "512", "-ub": "512", "-fa": "off"} | _kept(words, "-ngl -b -ub -fa -ctk -ctv -ts")
    own["-ub"] = str(min(int(own["-ub"]), int(own["-b"])))
    planned = ["-c", words[1], *(word for pair in own.items() for word in pair)]
    names = {"-b": "n_batch", "-ub": "n_ubatch"}
    said = [f"{names.get(word, word.strip('-'))}={value}" for word, value in own.items()]
    return Launch([f"n_ctx={words[1]}", *said], planned)


def _koboldcpp(dice: random.Random, words: list[str]) -> Launch:
    """--contextsize and its 128 cells more; a batch is a micro-batch; --draftamount."""
    n_ctx, slots = int(words[1]) + 128, dice.choice((1, 1, 2, 4))
    batch, drafted = dice.choice((128, 512, 512, 2048)), dice.choice((0, 0, 8))
    own = {"-fa": "off"} | _kept(words, "-ngl -fa -ctk -ctv -ts")
    said = [f"n_ctx={n_ctx}", f"n_batch={batch}", f"n_ubatch={batch}", "kv_unified=1"]
    said += [f"n_seq_max={slots + 1 if slots > 1 else 1}", f"n_rs_seq={drafted}"]
    said += [f"{word.strip('-')}={value}" for word, value in own.items()]
    planned = ["-c", str(n_ctx), "-b", str(batch), "-ub", str(batch), "-np", str(slots)]
    planned += [word for pair in own.items() for word in pair]
    planned += ["--spec-type", "draft-simple", "--draft-max", str(drafted)] if drafted else []
    return Launch(said, planned)


def _kept(words: list[str], flags: str) -> dict[str, str]:
    return {word: value for word, value in _pairs(words[2:]) if word in flags.split()}


PROGRAMS: Mapping[str, Callable[[random.Random, list[str]], Launch]] = {
    "llama-bench": _bench,
    "llama-completion": _as_it_is,
    "llama-perplexity": _perplexity,
    "llama-mtmd-cli": _mtmd,
    "llama-cpp-python": _library,
    "koboldcpp": _koboldcpp,
}
LIBRARY_USERS = ("llama-cpp-python", "koboldcpp")


def _sparse(name: str, folder: Path) -> Path:
    """A model's header, and a hole for its weights."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        path.write_bytes(next(FIXTURES.glob(f"**/{name}.gguf")).read_bytes())
        os.truncate(path, read_header(path).files[0].promised)
    return path


def _projector(model: Path, folder: Path) -> Path:
    path = folder / f"{model.stem}-projector.gguf"
    path.write_bytes(companion_files.projector(read_model(model)))
    os.truncate(path, read_header(path).files[0].promised)
    return path


def logged(words: list[str], environ: Mapping[str, str], last: bytes) -> tuple[LogReader, bytes]:
    """A program's log up to `last`, then the program is ended; and all that it said."""
    child = subprocess.Popen(
        words,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
    )
    assert child.stdout is not None
    reader, said = LogReader(), b""
    try:
        while last not in said and (piece := os.read(child.stdout.fileno(), 1 << 16)):
            reader.feed(piece)
            said += piece
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    reader.finish()
    return reader, said


def predicted(name: str, model: Model, words: list[str], devices: list[Device]) -> Breakdown:
    params = parse(words).params
    companions = Companions(mmproj=read_header(Path(params.mmproj))) if params.mmproj else NONE
    estimator = Estimator(model, Build(RECORDED, engine=engine(name)), companions)
    if params.n_parallel is None:
        words = ["-np", "1", *words]
    return estimator.breakdown(parse(words).params, devices)


def outcomes(
    name: str, count: int, seed: int, binaries: Path, mock: Path, folder: Path
) -> Iterator[Outcome]:
    """`count` launches of a program, the same for the same seed."""
    dice = random.Random(f"{name} {seed}")
    program = folder / "library_user" if name in LIBRARY_USERS else binaries / name
    for _ in range(count):
        file = _sparse(dice.choice(MODELS), folder)
        sizes = dice.choice(GPUS)
        devices = [Device.hypothetical(f"{size}GiB", f"CUDA{i}") for i, size in enumerate(sizes)]
        launch = PROGRAMS[name](dice, _random_words(dice, len(devices)))
        environ = {
            "LD_PRELOAD": str(mock),
            "MOCK_CUDA": ",".join(str(device.total) for device in devices),
            "GGML_NO_BACKTRACE": "1",
        }
        override = ["--override-kv", "tokenizer.ggml.model=str:none"]
        words = [str(program), "-m", str(file), *launch.words]
        planned = launch.planned
        if name == "llama-mtmd-cli":
            seen = ["--mmproj", str(_projector(file, folder))]
            words, planned = [*words, *seen], [*planned, *seen]
        words += [] if name in ("llama-bench", *LIBRARY_USERS) else override
        title = f"{file.stem} {','.join(map(str, sizes))} {' '.join(launch.words)}"
        last = b"reserve_compute_meta: graph" if name == "llama-mtmd-cli" else b"reserve took"
        # a log is written by a thread of its own, and a model without a vocabulary ends the tools
        for _ in range(TRIES):
            log, said = logged(words, environ, last)
            if last in said:
                break
        try:
            found = predicted(name, read_model(file), planned, devices)
        except LaunchRefused as refusal:
            alike = last not in said
            yield Outcome(title, "refused" if alike else "unlike", True, (str(refusal),))
            continue
        if last not in said:
            yield Outcome(title, "unlike", found.exact, (said[-300:].decode("utf-8", "replace"),))
            continue
        lines = [line for line in compare(log.launch, found).lines if line.difference is not None]
        unequal = [line for line in lines if not line.equal and not line.note]
        parts = tuple(f"{line.device} {line.part} {line.difference}" for line in unequal)
        under = any((line.difference or 0) > 0 for line in unequal)
        verdict = "under" if under else "over" if unequal else "equal"
        yield Outcome(title, verdict, found.exact, parts)


def library_user(binaries: Path, source: Path, folder: Path) -> Path:
    """engines/library_user.cpp, linked with the build's library."""
    program = folder / "library_user"
    words = ["c++", "-std=c++17", "-O1", "-w", str(TESTS / "engines/library_user.cpp")]
    words += [f"-I{source / part}" for part in ("include", "ggml/include")]
    words += [f"-L{binaries}", f"-Wl,-rpath,{binaries}", "-lllama", "-lggml", "-lggml-base"]
    subprocess.run([*words, "-o", str(program)], check=True)
    return program


def main() -> int:
    binaries, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    names = sys.argv[4:] or list(PROGRAMS)
    wrong = 0
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        library_user(binaries, binaries.parent.parent / "source", folder)
        for name in names:
            found = list(outcomes(name, count, seed, binaries, binaries / "libmockcuda.so", folder))
            tally = {v: sum(one.verdict == v for one in found) for v in VERDICTS}
            print(name, len(found), json.dumps(tally), flush=True)
            for one in found:
                if one.verdict not in ("equal", "refused"):
                    print("   ", one.verdict, "exact" if one.exact else "bound", one.launch)
                    print("       ", "; ".join(one.parts))
            wrong += tally["under"] + tally["unlike"]
    return int(wrong > 0)


VERDICTS = ("equal", "over", "under", "refused", "unlike")

if __name__ == "__main__":
    sys.exit(main())
