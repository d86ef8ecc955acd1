"""Anyone who asks which file to download would get one that is slow, or none.

`autolayers choose`: the table is what each file's own plan says, the advice is the largest that
is fully on the GPUs, and what can be wrong with a repository, a directory or a store is one
line.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from fake_ollama import FakeOllama
from fake_web import Repository, Web, status
from support import (
    FEW_CARDS,
    FIXTURES,
    HEADERS,
    ROOT,
    check_examples,
    few,
    few_rows,
    requantised,
    seldom,
    slow,
    write_gguf,
)

import autolayers
from autolayers.cli import main
from autolayers.flags.parse import parse
from autolayers.model import read_model
from autolayers.planner import plan_request
from autolayers.planner.compare import choose
from autolayers.planner.compare.choose import assess
from autolayers.quoting import shell
from autolayers.request import Request

TYPES = {
    "Q2_K": "q2_K",
    "IQ4_XS": "iq4_xs",
    "Q4_K_M": "q4_K",
    "Q6_K": "q6_K",
    "Q8_0": "q8_0",
    "F16": "f16",
}
LLAMA = "llama-3.1-8b-q4_k_m:8"
DENSE = (FIXTURES / "tiny" / "dense.gguf").read_bytes()


@cache
def quants(name: str) -> tuple[dict[str, bytes], dict[str, int]]:
    made = {f"my-{quant}.gguf": requantised(name, type_) for quant, type_ in TYPES.items()}
    return {path: body for path, (body, _) in made.items()}, {
        path: size for path, (_, size) in made.items()
    }


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Fills me/my-GGUF of a Hub."""
    web, store = Web(), Web()

    def fill(
        files: dict[str, bytes], sizes: dict[str, int] | None = None, name: str = "me/my-GGUF"
    ) -> Web:
        repository = Repository(web, store, files, sizes=sizes, name=name)
        monkeypatch.setenv("HF_ENDPOINT", repository.environ["HF_ENDPOINT"])
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        for name in ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        return web

    yield fill
    web.close()
    store.close()


@pytest.fixture
def chosen(capfd: pytest.CaptureFixture[str]):
    """(exit code, stdout, stderr) of `autolayers choose`."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["choose", *words])
        return code, *capfd.readouterr()

    return run


def directory(place: Path, name: str) -> str:
    bodies, sizes = quants(name)
    for path, body in bodies.items():
        write_gguf(place / path, body, sizes[path])
    return str(place)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gpu", "verdicts", "take"),
    [
        slow(LLAMA, "2900MiB", "wholly wholly wholly wholly partly partly", "Q6_K"),
        (LLAMA, "8GiB", "wholly wholly wholly wholly wholly wholly", "F16"),
        slow(
            "deepseek-v2-lite-q4_k_m:8",
            "4GiB",
            "wholly wholly wholly experts experts experts",
            "Q4_K_M",
        ),
        # as fast as people read in RAM, too
        slow(LLAMA, "1GiB", "partly partly partly in in no", "Q4_K_M"),
    ],
)
def test_each_file_is_planned_as_if_alone(
    name: str, gpu: str, verdicts: str, take: str, tmp_path: Path, hub, chosen
) -> None:
    hub(*quants(name))
    machine = ["--gpu", gpu, "--ram", "4GiB" if gpu == "1GiB" else "64GiB"]
    code, out, _ = chosen("hf:me/my-GGUF", *machine, "--ctx", "6k", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["schema"] == 1 and answer["n_ctx"] == 6144
    files = sorted(answer["files"], key=lambda file: file["size"])
    assert [file["verdict"].split()[0] for file in files] == verdicts.split()
    assert answer["advice"]["take"] == take and answer["advice"]["words"] == [
        "-hf",
        f"me/my-GGUF:{take}",
    ]
    place = directory(tmp_path, name)
    for file in files:
        model = autolayers.read_model(f"{place}/my-{file['name']}.gguf")
        plan = autolayers.plan(model, parse([*machine, "--ctx-min", "6144"]))
        assert file["size"] == model.size and (file["verdict"] != "no") == plan.fits
        if plan.fits:
            assert (file["n_ctx"], file["flags"]) == (plan.breakdown.n_ctx_seq, list(plan.flags))
            assert file["speed"] == plan.speed.to_dict()
            assert file["remaining"] == min(device.remaining for device in plan.devices)
    bits = {file["name"]: file["bits_per_weight"] for file in files}
    assert bits["Q8_0"] == pytest.approx(8.5, abs=0.01) and bits["F16"] == pytest.approx(
        16, abs=0.01
    )


@pytest.mark.slow
def test_the_advice_stands_above_its_table(hub, chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    hub(*quants(LLAMA))
    code, out, err = chosen(
        "-hf", "me/my-GGUF", "--gpu", "2900MiB", "--ram", "64GiB", "--ctx", "6k"
    )
    lines = out.splitlines()
    assert code == 0 and err == ""
    assert lines[0] == "hf:me/my-GGUF on CUDA0 2900.00 MiB, RAM 62.00 GiB, context 6144 or more"
    assert lines[1].startswith("take Q6_K (2.")
    assert "the largest that is fully on the GPU with 6144 tokens of context" in lines[1]
    assert [line[2:].split()[0] for line in lines[4:10]] == [*TYPES]
    assert [line[:2] for line in lines[4:10]] == ["  ", "  ", "  ", "> ", "  ", "  "]
    assert lines[11].startswith("llama-server -hf me/my-GGUF:Q6_K -ngl 9 -c ")
    assert lines[13].startswith("next      Q8_0 (2.") and "t/s instead of" in lines[13]
    assert chosen(
        "hf:me/my-GGUF", "--gpu", "2900MiB", "--ram", "64GiB", "--ctx", "6k", "--format", "hf"
    ) == (0, "-hf me/my-GGUF:Q6_K\n", "")


def test_words_name_the_very_file(hub, chosen) -> None:
    """A quant that two files have, or that llama-server would read as another, is said by the
    file's name."""
    body, size = requantised(LLAMA, "q4_K")
    names = [
        "my-7b-Q4_K_M.gguf",
        "my-13b-Q4_K_M.gguf",
        "d/my-Q5_K_M.gguf",
        "mmproj-F16.gguf",
        "my-Q8_0.gguf",
    ]
    hub(dict.fromkeys(names, body), dict.fromkeys(names, size))
    files = json.loads(chosen("hf:me/my-GGUF", "--gpu", "24GiB", "--ram", "64GiB", "--json")[1])[
        "files"
    ]
    assert {file["name"]: " ".join(file["words"][1:]) for file in files} == {
        "my-7b-Q4_K_M.gguf": "me/my-GGUF:Q4_K_M",
        "my-13b-Q4_K_M.gguf": "me/my-GGUF -hff my-13b-Q4_K_M.gguf",
        "d/my-Q5_K_M.gguf": "me/my-GGUF:Q5_K_M",
        "my-Q8_0.gguf": "me/my-GGUF:Q8_0",
    }


def test_what_is_wrong_is_one_line(hub, chosen, tmp_path: Path) -> None:
    machine = ["--gpu", "8GiB", "--ram", "16GiB"]
    web = hub({"model.safetensors": b"", "mmproj-F16.gguf": DENSE})
    assert chosen("hf:me/my-GGUF", *machine) == (
        3,
        "",
        "autolayers: hf:me/my-GGUF: no GGUF model in it; look for a repository whose name "
        "ends with -GGUF\n",
    )
    web.answers["/api/models/me/my-GGUF/tree/main"] = status(404)
    assert chosen("hf:me/my-GGUF", *machine) == (
        3,
        "",
        "autolayers: hf:me/my-GGUF: not found; check the name\n",
    )
    (tmp_path / "empty").mkdir()
    assert chosen(str(tmp_path / "empty"), *machine)[::2] == (
        3,
        f"autolayers: {tmp_path}/empty: no GGUF model in this directory or below it\n",
    )
    assert chosen(*machine)[0] == 2
    large = write_gguf(tmp_path / "my-F16.gguf", *requantised(LLAMA, "f16"))
    assert chosen(str(large), "--gpu", "1GiB", "--ram", "1GiB")[0] == 5


def test_one_broken_file_does_not_hide_the_others(hub, chosen) -> None:
    body, size = requantised(LLAMA, "q4_K")
    hub(
        {"my-Q4_K_M.gguf": body, "my-Q8_0.gguf": b"version https://git-lfs"},
        {"my-Q4_K_M.gguf": size},
    )
    code, out, err = chosen("hf:me/my-GGUF", "--gpu", "8GiB", "--ram", "64GiB")
    assert code == 0 and "> Q4_K_M" in out and "Q8_0" not in out
    assert err == (
        "autolayers: hf:me/my-GGUF/my-Q8_0.gguf: a Git LFS pointer instead of the file; "
        "use the link of "
        "the file itself\n"
    )


@pytest.mark.slow
def test_less_context_is_the_way_out_where_none_fits(chosen, tmp_path: Path) -> None:
    code, out, _ = chosen(
        directory(tmp_path, LLAMA), "--gpu", "1500MiB", "--ram", "1GiB", "--ctx", "64k"
    )
    assert code == 5
    assert "none fits with 65536 tokens of context; with less context some do: -c " in out.replace(
        "\n", " "
    )
    assert chosen(str(tmp_path), "--gpu", "500MiB", "--ram", "1GiB", "--format", "hf")[:2] == (
        5,
        "",
    )


@pytest.mark.parametrize(
    ("n_ctx", "take", "warned"),
    few_rows(
        3,
        [
            ("8k", "gemma-2-9b-q4_k_m", False),
            ("64k", "llama-3.2-1b-q8_0", False),
            ("1M", "gemma-2-9b-q4_k_m", True),
        ],
    ),
)
def test_trained_contexts_count(n_ctx: str, take: str, warned: bool, chosen) -> None:
    """8192 and 131072 tokens."""
    files = [str(HEADERS / f"{name}.gguf") for name in ("gemma-2-9b-q4_k_m", "llama-3.2-1b-q8_0")]
    code, out, err = chosen(*files, "--gpu", "24GiB", "--ram", "64GiB", "--ctx", n_ctx)
    assert code == 0 and f"> {take}" in out
    assert (
        "none of these models was trained for a context of 1048576: the longest is 131072" in err
    ) == warned


@pytest.mark.slow
def test_without_the_network_what_is_here(
    hub, chosen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub({})
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    commit = "0" * 40
    place = tmp_path / "hub/models--me--my-GGUF"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text(commit)
    (place / "snapshots" / commit).mkdir(parents=True)
    directory(place / "snapshots" / commit, LLAMA)
    words = ["hf:me/my-GGUF", "--gpu", "2900MiB", "--ram", "64GiB", "--format", "hf"]
    code, out, err = chosen(*words)
    assert (code, out) == (0, "-hf me/my-GGUF:Q6_K\n")
    assert "refused" in err and err.endswith("these are the files on this machine\n")


@pytest.mark.slow
def test_the_models_of_ollamas_store_are_compared(
    chosen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = tmp_path / "manifests/registry.ollama.ai/library/my"
    manifests.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    for number, type_ in enumerate(("q4_K", "q8_0")):
        digest = f"{number:064x}"
        write_gguf(tmp_path / f"blobs/sha256-{digest}", *requantised(LLAMA, type_))
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
        (manifests / type_).write_text(json.dumps({"layers": [layer]}))
    machine = ["--gpu", "2500MiB", "--ram", "64GiB"]
    with FakeOllama() as server:
        for name, value in {"OLLAMA_MODELS": str(tmp_path), **server.environ}.items():
            monkeypatch.setenv(name, value)
        assert (
            chosen("ollama:", *machine, "--format", "hf")[1]
            == f"-m {tmp_path}/blobs/sha256-{0:064x}\n"
        )
        # another tag of one file
        (manifests / "latest").write_text((manifests / "q4_K").read_text())
        text = chosen("ollama", *machine)[1]
        assert "my:latest" not in text
        assert "> my:q4_K " in text and "\n\nollama run my:q4_K\n\n" in text
        monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
        assert "no model in its store, nor on the server" in chosen("ollama:", *machine)[2]
        server.add("far:1b", str(HEADERS / "llama-3.2-1b-q8_0.gguf"))
        text = chosen("ollama:", *machine)[1]
        assert "> far:1b " in text and "\n\nollama run far:1b\n\n" in text
    assert "no model in its store, and" in chosen("ollama:", *machine)[2]


# --- which card

QWEN = str(HEADERS / "qwen3-30b-a3b-q4_k_m.gguf")


@pytest.mark.parametrize(
    ("other", "over"), few_rows(2, [("gpt-oss-20b-mxfp4", True), ("qwen3-30b-a3b-q4_k_m", False)])
)
def test_a_larger_model_that_is_no_slower_is_taken(other: str, over: bool, chosen) -> None:
    """A mixture with experts in RAM may beat a dense model that is fully on the GPU."""
    whole = "qwen3-8b-q4_k_m"
    files = [str(HEADERS / f"{name}.gguf") for name in (whole, other)]
    answer = json.loads(
        chosen(*files, "--gpu", "rtx-3060", "--ram", "32GiB", "-c", "16384", "--json")[1]
    )
    rates = {row["name"]: row["speed"]["generation_tokens_per_second"] for row in answer["files"]}
    assert (rates[other] > rates[whole]) == over and answer["advice"]["take"] == (
        other if over else whole
    )
    said = f"larger than {whole}, the largest that is fully on the GPU, and no slower"
    assert (said in answer["advice"]["text"]) == over


@pytest.mark.parametrize(
    ("words", "n_ctx", "least"),
    [
        (["--for", "code"], 32768, 15.0),
        slow(["--for", "agents", "-c", "8192"], 8192, 15.0),  # what the user gives counts
        slow([], 8192, 0.0),
    ],
)
def test_a_job_of_best_sets_the_context_and_the_least_rate(
    words: list[str], n_ctx: int, least: float, chosen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def advised(choices, n_ctx, least):
        asked.append((n_ctx, least))
        return choose.advise(choices, n_ctx, least)

    monkeypatch.setattr("autolayers.cli.choose.advise", advised)
    code, text, _ = chosen(QWEN, "--gpu", "rtx-3060", "--ram", "32GiB", *words)
    assert code == 0 and asked == [(n_ctx, least)]
    assert f"context {n_ctx} or more" in text


@pytest.fixture
def few_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autolayers.planner.compare.cards.CARDS", FEW_CARDS)


@seldom
def test_for_cards_lists_the_cards_that_run_a_model(chosen) -> None:
    code, out, err = chosen(QWEN, "--ctx", "32k", "--for", "cards")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == "qwen3-30b-a3b-q4_k_m (17.28 GiB) with 32768 tokens of context"
    for head in (
        "fully on one GPU",
        "fully on two identical GPUs",
        "fully in unified memory",
        "on one GPU with experts in RAM, of each size",
    ):
        assert any(line.startswith(head) for line in lines)
    assert "rtx-3090" in out and any(line.startswith("  2x ") for line in lines)
    # a whole command, for the fastest usual card of the least memory
    assert f"autolayers {shell([QWEN])} --gpu rtx-4090 -c 32768" in lines
    answer = json.loads(
        chosen(QWEN, "--ctx", "32k", "--for", "cards", "--speed", "100", "--json")[1]
    )
    assert answer["n_ctx"] == 32768 and answer["speed"] == 100
    rows = [row for kind in answer["cards"].values() for row in kind]
    assert rows and all(row["speed"]["generation_tokens_per_second"] >= 100 for row in rows)
    for row in answer["cards"]["experts in RAM"]:
        assert row["n_cpu_moe"] > 0 and row["ram"] > 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([QWEN, "--for", "cards", "--speed", "0"], 2, "expected tokens per second, such as 20"),
        ([QWEN, "--speed", "20"], 2, "--speed needs --for cards"),
        ([QWEN, "--for", "cards", "--gpu", "24GiB"], 2, "omit --gpu"),
        ([QWEN, "--for", "cards", "--format", "hf"], 2, "--for cards prints GPUs"),
        ([str(FIXTURES / "tiny"), "--for", "cards"], 2, "--for cards takes one model, not"),
        ([str(HEADERS / "llama-3.2-1b-q8_0.gguf"), "--for", "cards", "--speed", "99999"], 5, ""),
    ],
)
def test_what_for_cards_refuses(
    words: list[str], code: int, said: str, chosen, few_cards: None
) -> None:
    found, _, err = chosen(*words)
    assert found == code and said in err and err.count("\n") <= 1


@pytest.mark.slow
@pytest.mark.parametrize("width", few(3, [70, 80, 120]))
def test_the_table_is_laid_out_for_the_width(
    width: int, chosen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    names = [f"Meta-Llama-3.2-1B-Instruct-abliterated-{kind}" for kind in ("Q4_K_M", "Q8_0")]
    for name in names:
        (tmp_path / f"{name}.gguf").write_bytes((HEADERS / "llama-3.2-1b-q8_0.gguf").read_bytes())
    code, out, _ = chosen(".", "--gpu", "8GiB")
    lines = out.splitlines()
    assert code == 0 and all(
        len(line) <= width for line in lines if not line.startswith("llama-server")
    ), max(lines, key=len)
    # a long name lacks its middle
    for kind, name in zip(("Q4_K_M", "Q8_0"), names, strict=True):
        row = next(line for line in lines if line[2:].startswith("Meta-L") and f"-{kind} " in line)
        assert " 1.2 " in row and " fully " in row and (name if width == 120 else "..") in row
    monkeypatch.delenv("COLUMNS")  # on a pipe each file is one line
    _, out, _ = chosen(".", "--gpu", "8GiB")
    assert all(any(name in line and "fully" in line for line in out.splitlines()) for name in names)


# --- docs/choose.md


@pytest.mark.slow
def test_the_documented_examples_print_what_the_page_shows(
    hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    hub(*quants("llama-3.1-8b-q4_k_m"), name="me/Llama-3.1-8B-GGUF")

    def run(words: list[str]) -> str:
        # choose, and best
        code = main(words)
        out, err = capfd.readouterr()
        assert (code, err) == (0, "")
        return out

    assert check_examples(ROOT / "docs" / "choose.md", run) == 3


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        # a mixture: context for some of the request's time
        slow("qwen3-30b-a3b-q4_k_m", "12GiB"),
        slow("gpt-oss-20b-mxfp4", "rtx-3070"),
        slow("llama-3.3-70b-q4_k_m", "rtx-5090,rtx-3090"),  # unlike cards
        ("llama-3.1-8b-q4_k_m", "rtx-3060"),
    ],
)
def test_the_launch_is_the_one_that_a_plan_proposes(name: str, gpus: str) -> None:
    model = read_model(str(HEADERS / f"{name}.gguf"))
    request = Request.of(["--gpu", gpus, "--ram", "64GiB"], {})
    choice = assess(model, request)
    assert choice.flags == plan_request(model, request).flags and choice.n_ctx >= 8192
