"""A launch file would lose a flag that the user gave.

The property of every launch file: read as its target reads it, it is the launch that was
planned; and no word that the user gave is lost without a line that says so.
"""

from __future__ import annotations

import os
import re
from functools import cache

import launch_targets as targets
import pytest
from random_launches import READERS, case, written
from support import gpus, model, slow, swept

import autolayers
from autolayers.builds import Build
from autolayers.engines import engine
from autolayers.flags.formats import FORMATS
from autolayers.flags.params import Params
from autolayers.flags.parse import parse
from autolayers.flags.table import lookup
from autolayers.launch.command import WrappedCommand
from autolayers.memory.breakdown import Breakdown
from autolayers.memory.estimate import Estimator
from autolayers.records import replace


@pytest.mark.parametrize(
    "seeds",
    swept([range(first, first + 10) for first in range(0, 320, 10)], 8, [range(5)]),
    ids=str,
)
def test_a_launch_read_back_is_the_one_planned(seeds: range) -> None:
    read = dict.fromkeys(FORMATS, 0)
    for seed in seeds:
        for kind in FORMATS:
            found = written(kind, seed)
            if found is not None:
                read[kind] += 1
                check(kind, seed, *found)
    # what is refused is seldom
    read.pop("kserve")  # of GPUs, which nearly all of these launches use
    for kind, count in read.items():
        assert count > len(seeds) * (0.6 if kind in READERS else 0.2), kind


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        # -ts 2,1 with the caches in RAM: a given split is kept
        (80, "-ts 2,1"),
        # -dev CUDA0, the only GPU, which is too small for any launch: the last -dev counts
        slow(
            194,
            "-dev CUDA0 --fit off -c 16384 --host 0.0.0.0 --metrics --temp 0.5 -ngl 0 -dev none",
        ),
    ],
)
def test_given_words_are_kept_or_come_before_those_of_the_plan(seed: int, words: str) -> None:
    found = written("systemd", seed)
    assert found is not None
    check("systemd", seed, *found)
    assert words in found[1]


def check(
    kind: str, seed: int, plan: autolayers.Plan, text: str, said: list[str], command: WrappedCommand
) -> None:
    _, name, machine, _, _, environ = case(seed)
    context = f"{kind}, seed {seed}: {command.words} {environ} {plan.flags}\n{text}"
    assert "hush" not in text, context
    if kind in READERS:
        words: list[object] = [*READERS[kind](text)]
        params = parse([str(word) for word in words], command=None).params
        assert params == replace(parse(plan.flags, command=None).params, model=command.words[1]), (
            context
        )
    else:
        if kind == "koboldcpp":
            params, options = targets.koboldcpp(text)
            words = [word for pair in vars(options).items() for word in pair]
        else:
            params, arguments = targets.llama_cpp_python(text)
            words = list(arguments.values())
        assert params.model == command.words[1], context
        assert sizes(name, params, machine, kind) == sizes_of(plan.breakdown), context
    check_other_words(kind, text, words, said, command, environ, context)


@cache
def sizes(name: str, params: Params, machine: tuple[float, ...], kind: str) -> list[int]:
    """What the format's program allocates."""
    estimator = Estimator(model(name).overridden(params.override_kv), Build(engine=engine(kind)))
    return sizes_of(estimator.breakdown(replace(params, model=None), gpus(*machine)))


def sizes_of(use: Breakdown) -> list[int]:
    return [
        size for u in (*use.devices.values(), use.host) for size in (u.model, u.context, u.compute)
    ]


def check_other_words(
    kind: str,
    text: str,
    words: list[object],
    said: list[str],
    command: WrappedCommand,
    environ: dict[str, str],
    context: str,
) -> None:
    """Every word without a say in memory is in the file with its value, or named by a warning."""
    given = parse(command.words, environ, command=None)
    back = parse([str(word) for word in words], command=None) if kind in READERS else None
    warned = "\n".join(said)
    for flag in dict.fromkeys(flag for flag, _ in given.given):
        value = given.value(flag) or ""
        found = lookup(flag)
        if found is None or found[0].field:
            continue
        if flag == "--api-key":
            assert "LLAMA_API_KEY" in text + warned, context
        elif flag == "--port" and kind.startswith("llama-swap"):
            assert "${PORT}" in text, context
        elif flag in ("--port", "--host") and kind in ("docker", "compose"):
            published = value if value != "::1" else "[::1]"
            assert published in text, (flag, context)
        elif flag == "--host" and kind in ("kubernetes", "kserve"):
            # a Service has the address
            assert value == "0.0.0.0" or "--host " in warned, context
        elif back is not None:
            assert back.value(flag) in (value, os.path.abspath(value)) or re.search(
                rf"{flag}[ :]", warned
            ), (
                flag,
                context,
            )
        else:
            wanted = {value, os.path.abspath(value)} if value else {"True"}
            assert (
                f"{flag}:" in warned
                or wanted & {str(word) for word in words}
                or (value and float(value) in words)
            ), (flag, context)
    for name in given.unknown:
        assert name.lstrip("-") in text or f"{name}:" in warned, (name, context)
