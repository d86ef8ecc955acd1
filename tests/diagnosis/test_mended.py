"""Anyone who asks for the command that works would get one that fails again, or loses a flag.

The command that starts where memory is not the reason: of a log's words, with as few changed as
may be.
"""

from __future__ import annotations

import json

import pytest

from autolayers.diagnosis.diagnosis import explain
from autolayers.flags.parse import parse


@pytest.mark.parametrize(
    ("log", "given", "works"),
    [
        (
            "main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 9000",
            "-m a.gguf --port 9000 -c 512",
            "-m a.gguf --port 9001 -c 512",
        ),
        (
            "main: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
            "-m a.gguf",
            "-m a.gguf --port 8081",
        ),
        (
            "error: invalid argument: --n-gpu-layer",
            "-m a.gguf --n-gpu-layer 9 -c 512",
            "-m a.gguf --n-gpu-layers 9 -c 512",
        ),
        (
            "error: invalid argument: --frobnicate-zz",
            "-m a.gguf --frobnicate-zz 9 -c 512",
            "-m a.gguf -c 512",
        ),
        (
            "llama_model_load: error loading model: illegal split file idx: 1 (file: "
            "/m/a-00002-of-00009.gguf), model must be "
            "loaded with the first split",
            "-m /m/a-00002-of-00009.gguf -ngl 9",
            "-m /m/a-00001-of-00009.gguf -ngl 9",
        ),
        (
            "load: mismatch between text model (n_embd = 4096) and mmproj (n_embd = 5120)",
            "-m a.gguf --mmproj b.gguf -c 512",
            "-m a.gguf -c 512",
        ),
        (
            "llama_model_load: expect general.type to be 'adapter', but got: model",
            "-m a.gguf --lora b.gguf",
            "-m a.gguf",
        ),
        (
            "srv load_model: draft model 'b.gguf' must match target model",
            "-m a.gguf -md b.gguf",
            "-m a.gguf",
        ),
        (
            "llama_init_from_model: quantized V cache requires flash_attn to be enabled",
            "-m a.gguf -ctv q8_0 -fa off",
            "-m a.gguf -ctv q8_0 -fa on",
        ),
        (
            "llama_init_from_model: V cache quantization requires flash_attn",
            "-m a.gguf -ctv q8_0",
            "-m a.gguf -ctv q8_0 -fa on",
        ),
        (
            "quantized V cache was requested, but this requires Flash Attention",
            "-m a.gguf -ctv q8_0 -fa on",
            "-m a.gguf -fa on",
        ),
        (
            "llama_init_from_model: K cache type q8_0 with block size 32 does not divide "
            "n_embd_head_k=80",
            "-m a.gguf -ctk q8_0 -ctv q8_0",
            "-m a.gguf -ctv q8_0",
        ),
        (
            "clip_init: failed to load model 'p.gguf': operator(): unable to allocate CUDA0 buffer",
            "-m a.gguf --mmproj p.gguf",
            "-m a.gguf --mmproj p.gguf --no-mmproj-offload",
        ),
    ],
)
def test_the_command_that_starts(log: str, given: str, works: str) -> None:
    answer = explain(log.encode(), words=given.split(), files=False)
    assert answer.mended is not None and " ".join(answer.mended.words) == works
    assert f"llama-server {works}\n" in answer.text() and ", in the command below" in answer.text()
    parse(answer.mended.words, command=None)
    launch = answer.to_dict()["launch"]
    assert isinstance(launch, dict) and launch["words"] == works.split() and launch["fits"] is None


@pytest.mark.parametrize(
    "log",
    [
        "llama_model_load: error loading model: unknown model architecture: 'nobody'",
        "tensor 'blk.22.ffn_down.weight' data is not within the file bounds, model is corrupted or "
        "incomplete",
        "gguf_init_from_file_impl: failed to open GGUF file '/m/a-00002-of-00003.gguf' (No such "
        "file "
        "or directory)",
    ],
)
def test_a_broken_file_gets_no_command(log: str) -> None:
    answer = explain(log.encode(), words=["-m", "a.gguf", "-c", "512"], files=False)
    assert (
        answer.fatal
        and answer.mended is None
        and answer.launch is None
        and "llama-server -" not in answer.text()
    )


def test_a_secret_of_the_command_is_not_repeated() -> None:
    answer = explain(
        b"error: invalid argument: --n-gpu-layer",
        words=["--api-key", "SECRET", "--n-gpu-layer", "9"],
    )
    assert "give it again" in answer.text()
    assert "SECRET" not in answer.text() + json.dumps(answer.to_dict())


@pytest.mark.parametrize(
    ("flags", "error", "now"),
    [
        (
            "-fa -c 8192",
            "error while handling argument \"-fa\": error: unknown value for --flash-attn: '-c'",
            "-fa on -c 8192",
        ),
        (
            "--draft-min 2 -c 8192",
            'error while handling argument "--draft-min": the argument has been removed. use '
            "--spec-draft-n-min or --spec-ngram-mod-n-min",
            "--spec-draft-n-min 2 -c 8192",
        ),
    ],
)
def test_an_old_flag_is_what_it_is_today(flags: str, error: str, now: str) -> None:
    """The commonest lines of old blogs."""
    answer = explain(f"$ llama-server -m m.gguf {flags}\n{error}\n".encode())
    assert answer.mended is not None and " ".join(answer.mended.words).endswith(now)
    alone = explain(f"{error}\n".encode())
    (first, *_) = alone.remedies
    assert now.startswith(" ".join(first.flags).removesuffix(" 2"))
