"""Anyone who uses -hf would be sent to the network for a model that is there.

-hf USER/REPO[:QUANT] from the caches that llama-server and the Hub's own client fill: no network
where the model is there, and what is missing is named.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from support import FIXTURES

from autolayers.cli import main
from autolayers.cli.progress import Progress
from autolayers.errors import ModelError
from autolayers.gguf import read_header
from autolayers.sources import open_source
from autolayers.sources.hf_cache import directories, old_directory
from autolayers.sources.offers import offers

TINY = FIXTURES / "tiny"
DENSE, CHAT = (TINY / "dense.gguf").read_bytes(), (TINY / "chat.gguf").read_bytes()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NOBODY = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # a network that answers nothing


def hub(
    place: Path, files: dict[str, bytes], repository: str = "me/my-GGUF", ref: str = "main"
) -> Path:
    """The Hub's layout: snapshots are links into blobs."""
    root = place / ("models--" + repository.replace("/", "--"))
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (root / "refs" / ref).write_text(COMMIT)
    for number, (name, body) in enumerate(files.items()):
        (root / "blobs" / f"{number:040x}").write_bytes(body)
        link = root / "snapshots" / COMMIT / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(root / "blobs" / f"{number:040x}")
    return root


def old(place: Path, files: dict[str, bytes], tag: str = "latest") -> None:
    """The layout of llama.cpp's builds before it took the Hub's."""
    place.mkdir(parents=True, exist_ok=True)
    first = min(files)
    (place / f"manifest=me=my-GGUF={tag}.json").write_text(
        json.dumps({"ggufFile": {"rfilename": first}})
    )
    for name, body in files.items():
        (place / ("me_my-GGUF_" + name.replace("/", "_"))).write_bytes(body)


def said(name: str, environ: dict[str, str]) -> str:
    with pytest.raises(ModelError) as error:
        open_source(name, environ)
    assert "\n" not in str(error.value)
    return str(error.value)


PARTS = [f"{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
SPLIT = {f"q8/split-Q8_0-{part}": (TINY / f"split-{part}").read_bytes() for part in PARTS}


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("hf:me/my-GGUF", "my-Q4_K_M.gguf"),
        ("hf:me/my-GGUF:q8_0", "q8/split-Q8_0-00001-of-00003.gguf"),
        ("hf:me/my-GGUF/my-Q4_K_M.gguf", "my-Q4_K_M.gguf"),
        (f"hf:me/my-GGUF@{COMMIT}:Q4_K_M", "my-Q4_K_M.gguf"),
    ],
)
def test_models_are_found_in_the_hub_s_layout(
    tmp_path: Path, variable: str, below: str, name: str, path: str
) -> None:
    hub(tmp_path / below, {"my-Q4_K_M.gguf": CHAT, **SPLIT})
    header = open_source(name, {variable: str(tmp_path), **NOBODY})
    there = TINY / ("chat.gguf" if "Q4" in path else "split-00001-of-00003.gguf")
    assert header.tensors == read_header(there).tensors
    at = f"@{COMMIT}" if "@" in name else ""
    assert header.files[0].path == f"hf:me/my-GGUF/{path}{at}" and header.warnings == ()
    assert len(header.files) == (1 if "Q4" in path else 3)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("hf:me/my-GGUF", {"my-Q4_K_M.gguf": CHAT}),
        ("hf:me/my-GGUF:Q4_K_M", {"d/my-Q4_K_M.gguf": CHAT}),
        ("hf:me/my-GGUF:Q8_0", SPLIT),
    ],
)
def test_models_are_found_in_the_older_layout(
    tmp_path: Path, name: str, files: dict[str, bytes]
) -> None:
    for variable, place in (("LLAMA_CACHE", tmp_path), ("XDG_CACHE_HOME", tmp_path / "llama.cpp")):
        old(place, files)
        header = open_source(name, {variable: str(tmp_path), **NOBODY})
        assert [file.path for file in header.files] == [
            f"hf:me/my-GGUF/{path}" for path in sorted(files)
        ]


def test_the_first_cache_that_has_the_model(tmp_path: Path) -> None:
    hub(tmp_path / "a", {"my-Q8_0.gguf": DENSE})
    hub(tmp_path / "b", {"my-Q4_K_M.gguf": CHAT})
    environ = {"LLAMA_CACHE": str(tmp_path / "a"), "HF_HUB_CACHE": str(tmp_path / "b"), **NOBODY}
    assert open_source("hf:me/my-GGUF:Q8_0", environ).warnings == ()
    (note,) = open_source("hf:me/my-GGUF:Q4_K_M", environ).warnings
    assert f"looks only in {tmp_path / 'a'} and would download the model again" in note
    with pytest.raises(ModelError, match="refused"):
        open_source("hf:me/my-GGUF:Q6_K", environ)
    assert said("hf:me/my-GGUF:Q6_K", {**environ, "LLAMA_ARG_OFFLINE": "1"}).endswith(
        "and the network is off (--offline); there is: hf:me/my-GGUF:Q4_K_M, hf:me/my-GGUF:Q8_0"
    )


def test_a_long_look_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole disk takes minutes: once after a second in a log, again and again on a terminal."""
    clock = iter([1.0, 1.9, 2.1, 9.0])
    monkeypatch.setattr("autolayers.cli.progress.monotonic", lambda: next(clock))
    elsewhere = Progress()
    for folder in "abcd":
        elsewhere.looking(folder)
    assert capsys.readouterr().err == "autolayers: looking for GGUF files, now in c\n"
    clock = iter([1.0, 1.1, 1.3])
    terminal = Progress()
    terminal.on = True
    for folder in "abc":
        terminal.looking(folder)
    said = capsys.readouterr().err
    assert "in a" in said and "in b" not in said and "in c" in said and "\n" not in said


def test_each_folder_below_a_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "b" / "m.gguf").write_bytes(b"")
    seen: list[str] = []
    (offer,) = offers(str(tmp_path), NOBODY, seen.append)[0]
    assert offer.name.endswith("m")
    assert seen == [str(tmp_path / place) for place in ("", "a", "b", "b/c")]


@pytest.mark.parametrize("ending", [".downloadInProgress", ".incomplete"])
def test_a_download_that_has_not_ended_is_named(tmp_path: Path, ending: str) -> None:
    root = hub(
        tmp_path / "hub", {name: body for name, body in SPLIT.items() if "00002" not in name}
    )
    part = root / "blobs" / f"{'f' * 64}{ending}"
    part.write_bytes(b"GGUF")
    for name in ("hf:me/my-GGUF", "hf:me/my-GGUF:Q8_0", "hf:me/my-GGUF:Q4_K_M"):
        text = said(name, {"HF_HOME": str(tmp_path), **NOBODY})
        assert (
            f"only partly downloaded: {part} is not finished; `llama-server -hf me/my-GGUF` "
            f"resumes it" in text
        )
    with pytest.raises(ModelError, match=f"only partly downloaded: {part} is not finished"):
        offers("hf:me/my-GGUF", {"HF_HOME": str(tmp_path), **NOBODY})
    old(tmp_path / "old", {"my-Q4_K_M.gguf": CHAT})
    (tmp_path / "old/me_my-GGUF_my-Q4_K_M.gguf").rename(
        tmp_path / f"old/me_my-GGUF_my-Q4_K_M.gguf{ending}"
    )
    text = said("hf:me/my-GGUF", {"LLAMA_CACHE": str(tmp_path / "old"), **NOBODY})
    assert f"Q4_K_M.gguf{ending} is not finished" in text


@pytest.mark.parametrize(
    "break_it",
    [
        lambda root: (root / "refs/main").write_text("not a commit"),
        lambda root: (root / "refs/main").write_text("f" * 40),
        lambda root: [blob.unlink() for blob in (root / "blobs").iterdir()],
        lambda root: (root / "refs/main").unlink(),
    ],
)
def test_a_cache_that_is_damaged_is_no_cache(tmp_path: Path, break_it) -> None:
    root = hub(tmp_path, {"my-Q4_K_M.gguf": CHAT})
    break_it(root)
    assert "refused" in said("hf:me/my-GGUF", {"LLAMA_CACHE": str(tmp_path), **NOBODY})


def test_where_caches_are() -> None:
    environ = {"HOME": "/h", "USERPROFILE": "C:/u", "LOCALAPPDATA": "C:/l", "HF_HOME": "/m"}
    assert directories(environ, "linux") == ["/m/hub", "/h/.cache/huggingface/hub"]
    assert directories(environ, "win32")[1].replace("\\", "/") == "C:/u/.cache/huggingface/hub"
    assert [
        old_directory(environ, platform).replace("\\", "/")
        for platform in ("linux", "darwin", "win32")
    ] == ["/h/.cache/llama.cpp", "/h/Library/Caches/llama.cpp", "C:/l/llama.cpp"]
    assert directories({}) == [] and old_directory({}) == ""


# --- the command line


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", NOBODY["HF_ENDPOINT"])
    return tmp_path / "hub"


@pytest.mark.parametrize(
    "command", [["plan", "-q"], ["inspect"], ["sweep", "--contexts", "4096", "--types", "f16"]]
)
def test_each_command_takes_it(
    cache: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    hub(cache, {"my-Q8_0.gguf": DENSE})
    machine = [] if command[0] == "inspect" else ["--gpu", "24GiB", "--ram", "64GiB"]
    for words in (
        ["-hf", "me/my-GGUF"],
        ["-hf", "me/my-GGUF:Q8_0", "--offline"],
        ["hf:me/my-GGUF:Q8_0"],
    ):
        assert main([*command, *words, *machine]) == 0, capfd.readouterr().err
    assert main([*command, "-hf", "me/my-GGUF:Q4_0", "--offline", *machine]) == 3
    assert "there is: hf:me/my-GGUF:Q8_0" in capfd.readouterr().err


@pytest.fixture
def server(tmp_path: Path) -> str:
    program = tmp_path / "llama-server"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_run_plans_what_hf_loads(
    cache: Path, server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command stays as it is; the projector that -hf loads is counted, unless it is told not
    to."""

    def started(*words: str) -> str:
        assert (
            main(["run", "--gpu", "24GiB", "--ram", "64GiB", "--dry-run", server, "-hf", *words])
            == 0
        )
        return capfd.readouterr().out

    hub(cache, {"my-Q4_K_M.gguf": DENSE})
    plain = started("me/my-GGUF")
    assert plain.startswith(f"{server} -hf me/my-GGUF ") and "-ngl" in plain and "-mm" not in plain
    assert started("me/my-GGUF", "-hfd", "me/my-GGUF:Q4_K_M").startswith(
        f"{server} -hf me/my-GGUF -hfd me/my-GGUF:"
    )
    assert main(["run", "--gpu", "24GiB", "--dry-run", server, "-hf", "me/other-GGUF"]) == 3
    assert "refused" in capfd.readouterr().err

    writer = gguf.GGUFWriter(tmp_path / "mmproj.gguf", "clip")
    writer.add_string("clip.projector_type", "mlp")
    writer.add_tensor("mm.0.weight", np.zeros((64, 64), np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    root = hub(
        cache,
        {"eyes-Q4_K_M.gguf": DENSE, "mmproj-F16.gguf": (tmp_path / "mmproj.gguf").read_bytes()},
        "me/eyes-GGUF",
    )
    assert f"-mm {root}/snapshots/{COMMIT}/mmproj-F16.gguf" in started("me/eyes-GGUF")
    assert "-mm " not in started("me/eyes-GGUF", "--no-mmproj")
    assert main(["-hf", "me/eyes-GGUF", "--gpu", "24GiB", "--ram", "64GiB"]) == 0
    assert (
        f"give it with --mmproj {root}/snapshots/{COMMIT}/mmproj-F16.gguf" in capfd.readouterr().err
    )
