"""Writes docs/reading-a-plan.md: every word of one real plan.

    python docs/make.py reading-a-plan
"""

from __future__ import annotations

from pathlib import Path

import autolayers
from autolayers.report.table import Style
from autolayers.report.text import plan_text

FILE = Path(__file__).parents[1] / "fixtures" / "headers" / "qwen3-30b-a3b-q4_k_m.gguf"
WORDS = ("--gpu", "rtx-3060", "--ram", "32GiB")
TEXT = """# Reading a plan

Made by `python docs/make.py reading-a-plan` from a real plan: Qwen3 30B A3B, a mixture of experts, on an RTX 3060
with 12 GB and 32 GiB of RAM.

    $ autolayers qwen3-30b-a3b-q4_k_m.gguf --gpu rtx-3060 --ram 32GiB

{plan}

## The first two lines

| word | means |
|---|---|
| 17.3 GiB | the size of the file |
| fits | every device keeps its margin. **does not fit**: the launch needs more than there is; what would help is listed. **fits if ... of RAM are free**: the GPUs suffice and the size of RAM is unknown (`--ram`) |
| about ... tokens/s (... to ...) | the predicted rate of generation at the reference depth; 8 of 10 launches of this kind are within the range |
| prompts .../s | tokens of a prompt read per second |
| context ... for 4 slots | the cells of the KV cache. llama-server answers 4 requests at once by default (`-np`), which share them; "(4 slots of 4096)" are separate ones |

## The table

A row for each device, GiB. On a terminal each row has a bar, and the marks of its parts are in the head.

| column | means |
|---|---|
| weights | the model's tensors on this device |
| KV | the KV cache, and the states of recurrent layers |
| compute | the graph's buffers: activations of the largest micro-batch, and copies of weights that are read from RAM |
| extra | what other files take: a projector, a draft model, LoRA |
| GPU's | of RAM: what a GPU without memory of its own uses |
| grows | of RAM: what the prompt cache and checkpoints may reach while the server runs (`-cram`, `-ctxcp`) |
| margin | left free on purpose: the driver's context, kernels, and what buffers may grow by (`--margin`) |
| free ... of ... | what is left, and what was free before the launch |

`-v` adds the same in MiB, as llama.cpp's log prints it, the parts of the margin, and a row for each of identical GPUs.

## The layers

A character for each layer and the output. `#` lies on the GPU, `o` has its experts or other weights in RAM, `.` is computed
by the CPU; with several GPUs letters name them, small ones with weights in RAM. The line below says it in words: *{placement}*.
llama.cpp counts the output as one more layer: all of a model with 48 layers is `-ngl 49`.

## The command

The complete launch. Only flags that differ from llama-server's defaults are there:

| flag | means |
|---|---|
| `-ngl` | layers on the GPUs, from the last one |
| `-c` | context |
| `-b`, `-ub` | batch and micro-batch: how many tokens of a prompt are computed at once. A larger one reads weights in RAM less often |
| `-ncmoe N` | the experts of the first N layers stay in RAM |
| `-ot REGEX=CPU` | tensors that match stay in RAM: parts of one more layer |
| `-ts` | layers for each GPU |
| `-ctk`, `-ctv` | types of the KV cache |

## What follows

| word | means |
|---|---|
| why | what was weighed: what a larger context costs, and what is missing for one more layer |
| instead | changes that gain speed or context, with what they gain and lose; each is planned by itself |
| --fit | what llama-server chooses without these flags |
| speed | the prediction in full: its range, the rate with a full context, the time of the request that placements are compared by (`--workload`), and what was assumed because nobody measured it |
| memory | what the table does not show |
| ! | a warning |

`autolayers MODEL --why` shows the other candidates and what ruled them out.
"""


def render() -> str:
    plan = autolayers.plan(autolayers.read_model(FILE), WORDS, explain=True)
    text = plan_text(plan, Style(width=100), command=("llama-server", "-m", FILE.name))
    shown = "\n".join(f"    {line}" if line else "" for line in text.splitlines() if not line.startswith("! ")
                      and "header promises" not in line)
    return TEXT.format(plan=shown, placement=plan.placement)
