"""Python programs would get wrong types or no refusal.

The library as Python people call it: types, flags by name, and refusals.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import HEADERS

import autolayers
from autolayers.flags.keywords import words_of
from autolayers.flags.own import own_flags

ROOT = Path(__file__).parents[1]
FILE = HEADERS / "llama-3.2-1b-q8_0.gguf"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"gpu": "rtx-3060", "ctx": 8192}, "--gpu rtx-3060 --ctx 8192"),
        ({"gpu": ["24GiB", "rtx-3060"], "ram": "32GiB"}, "--gpu 24GiB,rtx-3060 --ram 32GiB"),
        ({"c": 4096, "cache_type_k": "q8_0", "ub": 1024}, "-c 4096 --cache-type-k q8_0 -ub 1024"),
        ({"mmap": False, "kv_unified": True, "n_gpu_layers": None}, "--no-mmap --kv-unified"),
    ],
)
def test_flags_by_name_are_the_words(flags: dict[str, object], words: str) -> None:
    assert words_of(flags) == words.split()


def test_a_plan_of_names_is_that_of_words() -> None:
    named = autolayers.plan(str(FILE), gpu=["3GiB", "2GiB"], ctx=8192, cache_type_k="q8_0")
    said = autolayers.plan(FILE, ["--gpu", "3GiB,2GiB", "--ctx", "8192", "--cache-type-k", "q8_0"])
    both = autolayers.plan(FILE, ["--ctx", "8192"], ["3GiB", "2GiB"], cache_type_k="q8_0")
    assert named.to_dict() == said.to_dict() and both.flags == named.flags


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"gpus": "8GiB"}, "no flag is called 'gpus': gpu?"),
        ({"gpu": True}, "gpu=True: --gpu takes a value"),
        ({"ctx": {}}, "ctx is a number, a text or a list of them"),
        ({"mlock": 3}, "mlock is True or False, not 3"),
        ({"gpu": [None]}, "gpu is a number"),
        ({"no_such": 1}, "no flag is called 'no_such'"),
    ],
)
def test_names_and_values_that_are_no_flags_are_type_errors(
    flags: dict[str, object], message: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        autolayers.plan(FILE, **flags)  # type: ignore[arg-type]


def test_models_of_another_type_are_type_errors() -> None:
    with pytest.raises(TypeError, match="a model is a Model or the name of its file, not 3"):
        autolayers.plan(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="models are a list"):
        autolayers.plan_together("a.gguf")
    with pytest.raises(TypeError, match="give them as words or by name"):
        autolayers.plan(FILE, autolayers.Params(), gpu="8GiB")


def test_choose_and_sweep_are_the_commands() -> None:
    (chosen,) = autolayers.choose([FILE], gpu="8GiB", ram="16GiB")
    assert chosen.fits and chosen.n_ctx > 0
    points = autolayers.sweep(FILE, contexts=[4096, 8192], types=["q8_0"], gpu="8GiB")
    assert [(point.n_ctx, point.cache_type) for point in points] == [(4096, "q8_0"), (8192, "q8_0")]
    assert all(point.plan is not None and point.plan.fits for point in points)


def test_an_estimate_of_names_is_that_of_records() -> None:
    gpu, params = (
        autolayers.Device.hypothetical("3GiB"),
        autolayers.Params(n_gpu_layers=9, n_ctx=8192),
    )
    found = autolayers.estimate(autolayers.read_model(FILE), params, [gpu])
    assert found == autolayers.estimate(str(FILE), ["-ngl", "9", "-c", "8192"], ["3GiB"])
    assert found == autolayers.estimate(FILE, gpu="3GiB", ngl=9, ctx=8192)
    with pytest.raises(autolayers.UsageError, match="ctx is a number, not max"):
        autolayers.estimate(FILE, gpu="3GiB", ctx="max")
    with pytest.raises(TypeError, match="devices are a list"):
        autolayers.estimate(FILE, params, gpu)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["llama-completion", "ik_llama.cpp"])
def test_an_estimate_is_of_the_engine(engine: str) -> None:
    """llama-completion has logits of a whole micro-batch."""
    words = ["-c", "8192", "-ngl", "99", "-ub", "512", "--gpu", "8GiB", "--engine", engine]
    use = autolayers.plan(FILE, words).breakdown
    assert autolayers.estimate(FILE, [*words, "-np", "1"]).devices == use.devices
    plain = autolayers.estimate(FILE, words[:-2])
    assert use.devices["CUDA0"].compute > 3 * plain.devices["CUDA0"].compute


# what each own flag of a plan is given as
GIVEN = {
    "budget": "CUDA0=1GiB",
    "margin": "1GiB",
    "kv-types": "q8_0",
    "ctx-min": "4096",
    "ttft": "2",
}
GIVEN |= {"workload": "agent", "acceptance": "0.5", "strategy": "layers", "ram-limit": "8GiB"}
GIVEN |= {"users": "2", "ctx-per-user": "4096", "min-rate": "2", "agents": "2", "format": "json"}
GIVEN |= {"gpumem": "kai", "picture": "a.svg", "stay": "a", "llama-server": "llama-server"}
USED = {"gpu", "backend", "ram", "cores", "machine", "ctx", "llama-build", "engine", "strict-flags"}


@pytest.mark.parametrize("key", sorted({flag.key for flag in own_flags("plan").values()} - USED))
def test_a_flag_that_a_function_would_ignore_is_refused(key: str) -> None:
    flag = next(flag for flag in own_flags("plan").values() if flag.key == key)
    words = ["--gpu", "8GiB", flag.names[-1], *([GIVEN[key]] if flag.takes_value else [])]
    words += ["--users", "2"] * (key == "ctx-per-user")
    with pytest.raises(autolayers.UsageError, match=r"^estimate solves nothing: it has no --"):
        autolayers.estimate(FILE, words)
    if key in (
        "format",
        "gpumem",
        "swap",
        "stay",
        "why",
        "table",
        "picture",
        "help",
        "version",
        "confirm",
    ):
        with pytest.raises(autolayers.UsageError, match=f"^plan prints nothing: it has no --{key}"):
            autolayers.plan(FILE, words)
    if key == "ctx-min":
        with pytest.raises(autolayers.UsageError, match=r"^sweep plans each context"):
            autolayers.sweep(FILE, words)


@pytest.mark.parametrize(
    "first",
    [
        "autolayers.Device.hypothetical('3GiB')",
        "autolayers.Host.hypothetical('3GiB')",
        "autolayers.Params(n_ctx=1)",
        "autolayers.plan",
        "autolayers.DoesNotFit",
        "autolayers.Header",
    ],
)
def test_whatever_is_used_first_is_there(first: str) -> None:
    subprocess.run([sys.executable, "-c", f"import autolayers; {first}"], check=True, timeout=60)


def test_help_shows_fields_and_their_types() -> None:
    parameters = inspect.signature(autolayers.Plan).parameters
    assert parameters["fits"].annotation == "bool" and parameters["found"].default == ()
    assert "words: 'Sequence[str] | Params | Arguments'" in str(inspect.signature(autolayers.plan))


def test_every_public_name_is_typed_and_there() -> None:
    source = Path(autolayers.__file__).read_text(encoding="utf-8")
    typed = set(re.findall(r"import (\w+) as \1$", source, re.MULTILINE))
    assert typed == set(autolayers.__all__) - {"__version__"}
    assert all(getattr(autolayers, name).__name__ == name for name in typed)


@pytest.mark.slow
@pytest.mark.parametrize("checker", [["mypy", "--strict"], ["pyright"]])
def test_examples_pass_type_checkers(checker: list[str], tmp_path: Path) -> None:
    """README's snippet, and calls as people write them."""
    if importlib.util.find_spec(checker[0]) is None:
        pytest.skip(f"no {checker[0]} here")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    snippet = next(
        block
        for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
        if "read_model" in block
    )
    file = tmp_path / "example.py"
    file.write_text(
        snippet
        + """
import autolayers as a

found: a.Plan = a.plan("m.gguf", gpu="rtx-3060", ctx=8192)
speed: float = found.speed.generation
first: a.Choice = a.choose(["a.gguf"], gpu=["24GiB", "8GiB"])[0]
host: a.Host = a.discover().host
error: type[Exception] = a.DoesNotFit
used: int = a.estimate("m.gguf", ["-ngl", "33"], ["24GiB"]).host_resident
points = a.sweep("m.gguf", contexts=[4096], gpu="8GiB")
rates = [point.plan.speed.prompt for point in points if point.plan]
cause: bool = a.explain("log.txt").known
""",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", *checker, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_plan_crosses_processes() -> None:
    """As a ProcessPoolExecutor of plans sends them."""
    plan = autolayers.plan(str(FILE), ["--gpu", "8GiB", "--ram", "32GiB"])
    back = pickle.loads(pickle.dumps(plan))
    assert back.flags == plan.flags and back.to_dict() == plan.to_dict()
    assert back.speed == plan.speed and back.layers == plan.layers


def test_what_the_pages_name_is_public() -> None:
    assert issubclass(autolayers.WrongType, autolayers.UsageError)
    assert isinstance(autolayers.discover(), autolayers.Inventory)
