"""An ordinary command would end in a traceback or take minutes.

Ordinary command lines at random: each ends in a plan or in one of our errors, within 20 s of
processor time.

There are 2,000; a run with -m slow takes those of the day, and AUTOLAYERS_ALL_COMMAND_LINES=1 takes
all of them. AUTOLAYERS_TIMES=FILE writes the seconds of each.
"""

from __future__ import annotations

import datetime
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import model, slow

import autolayers
from autolayers.errors import AutolayersError

COUNT, A_DAY = 2000, 25
LIMIT = 20  # seconds of processor time
MODELS = (
    "llama-3.2-1b-q8_0",
    "llama-3.1-8b-q4_k_m",
    "llama-3.3-70b-q4_k_m",
    "qwen3-8b-q4_k_m",
    "qwen3-32b-q4_k_m",
    "qwen3-30b-a3b-q4_k_m",
    "gpt-oss-20b-mxfp4",
    "gpt-oss-120b-mxfp4",
    "gemma-3-4b-q8_0",
    "gemma-3-27b-q4_k_m",
    "gemma-4-26b-a4b-q4_k_m",
    "deepseek-v2-lite-q4_k_m",
    "mamba2-2.7b-q4_k_m",
    "granite-4.0-h-small-q4_k_m",
    "llama-4-scout-q4_k_m",
    "phi-3-mini-q4_k_m",
    "qwen3-next-80b-a3b-q5_k_s",
    "qwen3.6-35b-a3b-q4_k_m",
    "mistral-small-24b-q4_k_m",
)
CARDS = (
    "rtx-3060",
    "rtx-3070",
    "rtx-3090",
    "rtx-4060-ti-16g",
    "rtx-4090",
    "rtx-5090",
    "rx-7900-xtx",
    "a100-80g",
    "8GiB",
    "6GiB",
)
TYPES = ("f16", "q8_0", "q5_1", "q4_0")


def words_of(dice: random.Random, n_layer: int) -> list[str]:
    """A machine, and flags as people give them."""
    count = dice.choice((1, 1, 2, 3))
    cards = (
        [dice.choice(CARDS)] * count
        if dice.random() < 0.5
        else [dice.choice(CARDS) for _ in range(count)]
    )
    words = [
        "--gpu",
        ",".join(cards),
        "--ram",
        dice.choice(("8GiB", "16GiB", "32GiB", "64GiB", "128GiB")),
    ]
    if dice.random() < 0.6:
        words += [
            "-c",
            dice.choice(("2048", "4096", "8192", "16384", "32768", "40000", "65536", "131072")),
        ]
    if dice.random() < 0.5:
        words += ["-ngl", str(dice.choice((0, 999, 99, dice.randint(1, n_layer + 1))))]
    if dice.random() < 0.5:
        words += [dice.choice(("-ncffn", "-ncmoe")), str(dice.randint(1, n_layer))]
    if count > 1 and dice.random() < 0.5:
        words += ["-ts", ",".join(str(dice.randint(1, 9)) for _ in range(count))]
    if dice.random() < 0.3:
        words += ["-ctk", dice.choice(TYPES), "-ctv", dice.choice(TYPES)]
    for more, share in (
        (["-np", dice.choice("1248")], 0.2),
        (["-fa", "off"], 0.1),
        (["-nkvo"], 0.05),
        (["-ub", dice.choice(("256", "1024", "2048"))], 0.15),
        (["--ctx", "max"], 0.1),
    ):
        if dice.random() < share and not ("--ctx" in more and "-c" in words):
            words += more
    return words


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Ends the test after so much of this process's time, wherever it is."""

    def over(*_: object) -> None:
        pytest.fail(f"more than {seconds} s of processor time")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def chosen() -> list[int]:
    if os.environ.get("AUTOLAYERS_ALL_COMMAND_LINES"):
        return list(range(COUNT))
    first = datetime.date.today().toordinal() * A_DAY % COUNT
    return list(range(first, first + A_DAY))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers of processes are POSIX")
@pytest.mark.parametrize("number", chosen())
def test_an_ordinary_command_line_ends(number: int) -> None:
    dice = random.Random(number)
    name = dice.choice(MODELS)
    words = words_of(dice, model(name).n_layer)
    start = time.process_time()
    said = "refused"
    with limited(LIMIT):
        try:
            found = autolayers.plan(model(name), words, explain=True)
            said = f"fits {found.fits}"
        except AutolayersError as error:
            assert str(error)
    if path := os.environ.get("AUTOLAYERS_TIMES"):
        with open(path, "a") as file:
            file.write(f"{time.process_time() - start:.2f}\t{said}\t{name} {' '.join(words)}\n")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers of processes are POSIX")
@pytest.mark.parametrize("count", [slow("46"), slow("47")])
def test_advice_on_a_given_context_ends(count: str) -> None:
    words = ["--gpu", "rtx-3090", "--ram", "64GiB", "-c", "32768", "-ngl", "999", "-ncffn", count]
    with limited(LIMIT):
        found = autolayers.plan(model("llama-3.3-70b-q4_k_m"), words, explain=True)
    assert not found.fits and found.remedies
