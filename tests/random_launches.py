"""Random machines, models and words, and the launch file of each in every format."""

from __future__ import annotations

import random
from functools import cache

import launch_targets as targets
from support import HEADERS, gpus, model

import autolayers
from autolayers import api
from autolayers.builds import TODAY
from autolayers.errors import AutolayersError, UsageError
from autolayers.flags.own import OwnFlag
from autolayers.flags.parse import items, parse
from autolayers.launch import formats
from autolayers.launch.command import WrappedCommand, additions

MODELS = (
    "llama-dense",
    "gemma3-dense",
    "gpt-oss-moe",
    "granite-moe",
    "qwen2-dense",
    "mamba2-dense",
    "granitehybrid-dense",
    "deepseek2-moe",
    "phi3-dense",
    "mellum-moe",
)
# Words that touch memory, one of each row or none
MEMORY = (
    ("-np 1", "-np 4", "-np 2 -kvu"),
    ("-ub 128", "-ub 256 -b 1024"),
    ("-fa on", "-fa off", "-fa auto"),
    ("-ctk q8_0 -ctv q8_0 -fa on", "-ctk q4_0", "-ctk bf16 -ctv bf16"),
    ("--swa-full",),
    ("-nkvo",),
    ("-ngl 1", "-ngl 2", "-ngl 99"),
    (
        "-ncmoe 1",
        "-cmoe",
        r"-ot "
        r"blk\.1\.ffn_.*=CPU",
    ),
    ("-sm none -mg 0", "-dev CUDA0", "-dev none", "-ts 2,1"),
    ("-lm none", "-lm mlock", "--no-mmap", "--mlock"),
    ("--no-op-offload",),
    ("--embedding",),
    ("--cache-ram 100", "--no-warmup"),
    ("--fit off", "-fitt 300"),
    ("--strategy layers", "--kv-types q8_0,f16"),
)
# Others, and the variables that say the same
OTHERS = (
    ("--port 9001", "--port=9001"),
    ("--host 0.0.0.0", "--host 127.0.0.1", "--host ::1"),
    ("-t 8",),
    ("--jinja",),
    ("-a name,other",),
    ("--no-cont-batching",),
    ("--metrics",),
    ("--api-prefix /x",),
    ("--temp 0.5",),
    ("--chat-template-file here/t.jinja",),
    ("--api-key-file k.txt",),
    ("--slot-save-path slots",),
    ("--rope-freq-base 10000",),
    ("-md-is-new 3",),
)
VARIABLES = (
    ("LLAMA_ARG_PORT", "9002"),
    ("LLAMA_ARG_HOST", "0.0.0.0"),
    ("LLAMA_ARG_THREADS", "7"),
    ("LLAMA_ARG_CTX_SIZE", "3072"),
    ("LLAMA_ARG_CACHE_TYPE_K", "q8_0"),
    ("LLAMA_API_KEY", "hush"),
)
READERS = {
    "systemd": targets.systemd,
    "docker": targets.docker,
    "compose": targets.compose,
    "llama-swap": targets.llama_swap,
    "preset": targets.preset,
    "nixos": targets.nixos,
    "llmkube": targets.llmkube,
    "kubernetes": targets.kubernetes,
    "gpustack": targets.gpustack,
    "kserve": targets.kserve,
    "docker-model": targets.docker_model,
    "llama-swap-matrix": lambda text: next(iter(targets.llama_swap_matrix(text)[0].values())),
}


def chosen(dice: random.Random, rows: tuple[tuple[str, ...], ...], share: float) -> list[str]:
    words = [dice.choice(row) for row in rows if dice.random() < share]
    return [word for text in words for word in text.split(" ")]


@cache
def case(
    seed: int,
) -> tuple[random.Random, str, tuple[float, ...], tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """(dice, model, MiB of the GPUs, words that touch memory, other words, environment)."""
    dice = random.Random(seed)
    name = dice.choice([name for name in MODELS if list(HEADERS.glob(f"{name}.gguf"))])
    size = model(name).size / (1 << 20)
    machine = tuple(
        size * dice.uniform(0.1, 2) + dice.uniform(400, 900)
        for _ in range(dice.choice((1, 1, 2, 3)))
    )
    memory = [*chosen(dice, MEMORY, 0.12), "-c", dice.choice(("2048", "4096", "5000", "16384"))]
    others = chosen(dice, OTHERS, 0.25) + (["--api-key", "hush"] if dice.random() < 0.3 else [])
    environ = dict(variable for variable in VARIABLES if dice.random() < 0.15)
    return dice, name, machine, tuple(memory), tuple(others), environ


@cache
def plan_of(seed: int, own: str) -> autolayers.Plan | None:
    """The plan of a case for a format with rules of its `own`, "" for llama-server's; None where
    there is none."""
    _, name, machine, memory, others, environ = case(seed)
    try:
        return formats.plan_for(
            own,
            parse([*memory, *others], environ),
            lambda arguments: api.plan(model(name), arguments, devices=gpus(*machine)),
        )[0]
    except AutolayersError:
        return None


def written(kind: str, seed: int) -> tuple[autolayers.Plan, str, list[str], WrappedCommand] | None:
    """(the plan, the file, its warnings, the command); None where no such launch can be planned or
    expressed."""
    _, name, _, memory, others, environ = case(seed)
    plan = plan_of(seed, "" if kind in READERS else kind)
    if plan is None:
        return None
    llama = [
        word
        for item in items([*memory, *others], "plan")
        if not isinstance(item.flag, OwnFlag)
        for word in item.words
    ]
    command = WrappedCommand(
        ("llama-server",), ("-m", f"/models/{name}.gguf", *llama), "llama-server"
    )
    added, notes = additions(command, plan.flags, TODAY, environ)
    assert not notes
    said: list[str] = []
    try:
        return (
            plan,
            formats.write(kind, plan, parse(llama), command, added, environ, warn=said.append),
            said,
            command,
        )
    except UsageError:
        return None
