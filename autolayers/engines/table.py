"""The programs, one row each. llama.cpp's own set no n_outputs_max (common/, tools/ of b11549:
server-context.cpp alone does), nor do llama-cpp-python 0.3.36 (Llama.__init__) and KoboldCpp
(gpttype_adapter.cpp)."""

from __future__ import annotations

from ..errors import UsageError
from ..records import replace
from .engine import LLAMA_SERVER, Engine
from .ik_llama import IK_LLAMA


def _user(name: str) -> Engine:
    """Return a tool or a library that fills a context's parameters itself."""
    return Engine(
        name, whole_batches=True, one_sequence=True, serves=False, lacks=("-cram", "-ctxcp")
    )


ENGINES = {
    row.name: row
    for row in (
        LLAMA_SERVER,
        Engine("llama-cli", one_sequence=True),  # a client of a server of its own
        replace(_user("llama-bench"), written_by="autolayers run llama-bench -m MODEL"),
        _user("llama-completion"),
        _user("llama-fit-params"),  # a context of its own, so its figures are not llama-server's
        replace(_user("llama-perplexity"), reads_all=True, chunk=512),
        _user("llama-mtmd-cli"),
        replace(_user("llama-cpp-python"), written_by="--format llama-cpp-python"),
        # RESERVED_BACKGROUND_SLOTS of its llamacpp-extension's preset.ts, and kv-unified
        Engine(
            "jan",
            one_sequence=True,
            hidden_slots=2,
            written_by="fields of Jan's settings (docs/launch-files.md names them)",
        ),
        # its logits were not seen: the larger; by its documentation four predictions at once
        Engine(
            "lm-studio",
            whole_batches=True,
            written_by="`lms load`, by the page of autolayers web",
        ),
        # n_rs_seq is --draftamount with any draft; continuous batching has n_seq_max of slots + 1
        # and kv_unified
        replace(
            _user("koboldcpp"),
            rolls_back=True,
            spare_sequence=True,
            written_by="--format koboldcpp",
        ),
        IK_LLAMA,
    )
}


def engine(name: str) -> Engine:
    """Return the program of this name. Raises UsageError."""
    row = ENGINES.get(name)
    if row is None:
        other = "; for Ollama: autolayers ollama" if name == "ollama" else ""
        raise UsageError(f"--engine {name}: expected one of {', '.join(ENGINES)}{other}")
    return row


def of_program(name: str) -> Engine:
    """Return the engine of a program by its file's name: llama-server for scripts and other
    wrappers, and for tools of llama.cpp that have no row a library's user like the others."""
    if name in ENGINES:
        return ENGINES[name]
    if not name.startswith("llama-") or "server" in name:
        return LLAMA_SERVER
    return _user(name)
