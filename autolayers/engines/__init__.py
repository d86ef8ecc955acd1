"""The program that is launched: what each that runs GGUF files does unlike llama-server.

    engine("koboldcpp").whole_batches  # True: it reserves logits of every token of a micro-batch
    of_program("llama-bench")              # the Engine of a program's name

A program is a row of table.py, or a file here where it has rules of its own; memory, planner and
launch read what it does by the row's fields.
"""

from __future__ import annotations

from .engine import LLAMA_SERVER, Engine
from .ik_llama import leaner
from .table import ENGINES, engine, of_program

__all__ = ["ENGINES", "LLAMA_SERVER", "Engine", "engine", "leaner", "of_program"]
