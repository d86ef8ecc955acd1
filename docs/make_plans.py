"""Writes docs/plans.md: autolayers' plans and --fit's own, for 12 models on 6 machines.

    python docs/make.py plans        (a minute; not among what make.py makes or checks unasked)

Headers are the fixtures'; --fit's answer is autolayers.planner.one.fit. tests/planner/test_fit.py asks the real
llama-server and llama-fit-params for every cell of it.
"""

from __future__ import annotations

import pathlib
import sys

import autolayers
from autolayers.flags.params import N_UBATCH, Params
from autolayers.planner import FitChoice, Plan
from autolayers.work.speed import Speed

ROOT = pathlib.Path(__file__).resolve().parent.parent

MODELS = (
    "llama-3.2-1b-q8_0",
    "gemma-3-4b-q8_0",
    "phi-3-mini-q4_k_m",
    "qwen3-8b-q4_k_m",
    "llama-3.1-8b-q4_k_m",
    "gemma-2-9b-q4_k_m",
    "gpt-oss-20b-mxfp4",
    "qwen3-30b-a3b-q4_k_m",
    "granite-4.0-h-small-q4_k_m",
    "llama-3.3-70b-q4_k_m",
    "qwen3-next-80b-a3b-q4_k_m",
    "llama-4-scout-q4_k_m",
)
MACHINES = (("8 GiB", "rtx-4060"), ("12 GiB", "rtx-3060"), ("16 GiB", "rtx-5070-ti"), ("24 GiB", "rtx-3090"),
            ("2 x 24 GiB", "rtx-3090,rtx-3090"), ("24 + 8 GiB", "rtx-3090,rtx-3070"))
RAM = "64GiB"

HEAD = f"""\
# Plans

Made by `python docs/make.py plans`; do not edit. Each model on six machines with {RAM} of RAM, nothing given: what
autolayers plans, and what `llama-server --fit on` would choose by itself.

- **layers**: of all, the output layer included, on the GPUs; *-k exp* means that the experts of k layers (*ffn*: the
  FFN weights) lie in RAM, which with a mixture of experts costs little.
- **context**: tokens, shared by the four default slots.
- **-ub**: the micro-batch, where it is not 512.
- **t/s**: predicted tokens per second of generation and of prompts for `--workload chat`: not a measurement
  ([speeds.md](speeds.md) has how far off), there to compare the two columns.
- What `--fit` chooses is compared, cell by cell, with what llama-server and llama-fit-params themselves choose for CUDA
  devices of these sizes (`pytest -m llamacpp tests/planner/test_fit.py`).
- `--fit` keeps 1024 MiB free on each GPU, autolayers what docs/devices.md derives. *breaks* marks a choice of --fit
  that does not leave that; *does not fit* a model too large for the machine.

## What the fitted speed model changed

Before, speed was bytes by bandwidth with one share for all cards. Of the 72 plans 44 have kept placement and context,
19 have another placement, 9 another context.

- **Experts in RAM** (gpt-oss, Qwen3, Granite, Scout): micro-batches of 1024 to 4096, because weights are copied to the
  GPU once for each, which costs up to three more layers of experts in RAM; and contexts of up to 43k where that takes
  at most 5 % longer, instead of what was left over.
- **70B on 12 to 32 GiB**: FFN weights in RAM instead of whole layers. A hand-over between a GPU and the processor was
  priced three times too high for CUDA, and attention on the processor twice too low.
- **Rates**: dense models on an RTX 4060 are predicted up to 1.24 times as fast (Ada reaches 93 % of its bandwidth),
  mixtures wholly on GPUs down to 0.43 times, because every kernel takes 2 to 3 microseconds; with experts in RAM little
  changed.
- Other contexts of launches wholly on the GPU come from the margin: a CUDA context by its card's multiprocessors.
"""


def cell(params: Params, n_ctx: int, everything: int, speed: Speed) -> str:
    n = everything if params.n_gpu_layers is None or params.n_gpu_layers < 0 else min(params.n_gpu_layers, everything)
    text = f"{n}/{everything}"
    experts = len({p.split(".")[1] for p, b in params.overrides if "exps" in p or "gate_up" in p})
    ffn = len([p for p, b in params.overrides if "exps" not in p and "gate_up" not in p])
    if len(params.overrides) == 1 and params.overrides[0][0].startswith(r"\."):
        text += " -all exp"
    elif experts:
        text += f" -{experts} exp"
    elif ffn:
        text += f" -{ffn} ffn"
    if params.n_ubatch not in (None, N_UBATCH):
        text += f" -ub {params.n_ubatch}"
    return f"{text} | {n_ctx} | {speed.generation:.1f} | {speed.prompt:.0f}"


def row(name: str, plan: Plan) -> str:
    everything = plan.n_layer + 1
    ours = cell(plan.params, plan.breakdown.n_ctx, everything, plan.speed)
    if not plan.fits:
        ours = "does not fit | | | "
    rival: FitChoice | None = plan.fit_choice
    theirs = " | | | "
    if rival:
        theirs = cell(rival.params, rival.breakdown.n_ctx, everything, rival.speed)
        if not rival.fits:
            theirs += " (breaks)"
    return f"| {name} | {ours} | {theirs} |"


def planned(name: str, cards: str) -> str:
    """The line of one model on one machine."""
    model = autolayers.read_model(ROOT / "fixtures" / "headers" / f"{name}.gguf")
    return row(name, autolayers.plan(model, ["--gpu", cards, "--ram", RAM], explain=True))


def render() -> str:
    lines = [HEAD]
    for title, cards in MACHINES:
        lines += [
            f"## {title} ({cards.replace(',', ' + ')})",
            "",
            "| model | autolayers: layers | context | t/s | prompts | --fit: layers | context | t/s | prompts |",
            "|---|---|---:|---:|---:|---|---:|---:|---:|",
        ]
        for name in MODELS:
            lines.append(planned(name, cards))
            print(title, lines[-1], file=sys.stderr, flush=True)
        lines.append("")
    return "\n".join(lines)
