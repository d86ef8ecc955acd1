"""Anyone who starts the router would get models that do not fit together.

`autolayers run llama-server` without a model: its directory is planned, and the router started
with the preset.
"""

from __future__ import annotations

import configparser
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from companion_files import projector
from support import HEADERS, TESTS, slow

from autolayers import read_model
from autolayers.launch.router import listed

TINY = TESTS.parent / "fixtures" / "tiny"
MODELS = {"llama-3.1-8b-q4_k_m": "llama-8b", "gemma-3-4b-q8_0": "gemma"}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell script as llama-server")


@pytest.fixture
def server(tmp_path: pathlib.Path) -> pathlib.Path:
    """A llama-server that keeps its words, one a line."""
    path = tmp_path / "llama-server"
    path.write_text(
        '#!/bin/sh\ncase " $* " in *" --version "*) echo "version: 11549 (abcdef12)"; '
        "exit;;\n"
        '*" --help "*) exit;; esac\nprintf "%s\\n" "$@" >"$(dirname "$0")/words"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def models(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two models of real size: files, as sparse as their headers leave them."""
    place = tmp_path / "models dir"
    place.mkdir()
    for header, name in MODELS.items():
        file = place / f"{name}.gguf"
        shutil.copy(HEADERS / f"{header}.gguf", file)
        os.truncate(file, read_model(str(file)).size)
    return place


def run(server: pathlib.Path, own: str, *words: object) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    environ["XDG_STATE_HOME"] = str(server.parent / "state")
    return subprocess.run(
        [sys.executable, "-m", "autolayers", "run", *own.split(), str(server), *map(str, words)],
        capture_output=True,
        text=True,
        env=environ,
        timeout=300,
        check=False,
    )


def started(server: pathlib.Path) -> list[str]:
    return (server.parent / "words").read_text().splitlines()


def preset(words: list[str]) -> configparser.ConfigParser:
    """The preset of a command, as an INI reader reads it."""
    text = pathlib.Path(words[words.index("--models-preset") + 1]).read_text()
    version, _, rest = text.partition("\n")
    assert version == "version = 1"
    read = configparser.ConfigParser(interpolation=None)
    read.read_string(rest)
    return read


def flags_of(model: pathlib.Path, *words: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-m", "autolayers", str(model), *words, "--format", "flags"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout.split()


@pytest.mark.slow
def test_each_model_of_the_directory_is_planned_for_the_machine(
    server: pathlib.Path, models: pathlib.Path
) -> None:
    done = run(server, "--gpu 24GiB --ram 64GiB", "--models-dir", models, "--port", "8080")
    words = started(server)
    assert done.returncode == 0 and words[:4] == ["--models-dir", str(models), "--port", "8080"]
    assert words[4:][::2] == ["--models-preset", "--models-max"] and words[-1] == "2"
    read = preset(words)
    assert read.sections() == sorted(MODELS.values())
    for name in MODELS.values():
        assert read[name]["model"] == str(models / f"{name}.gguf")
        assert (
            int(read[name]["n-gpu-layers"])
            == read_model(str(models / f"{name}.gguf")).hparams.n_layer + 1
        )
    state = (server.parent / "state").rglob("*.ini")
    assert [str(path) for path in state] == [words[words.index("--models-preset") + 1]]


@pytest.mark.slow
def test_models_max_is_kept_and_one_at_a_time_has_the_whole_machine(
    server: pathlib.Path, models: pathlib.Path
) -> None:
    run(server, "--gpu 8GiB --ram 64GiB", "--models-dir", models, "--models-max", "1")
    words = started(server)
    assert words.count("--models-max") == 1
    alone = flags_of(models / "llama-8b.gguf", "--gpu", "8GiB", "--ram", "64GiB")
    assert preset(words)["llama-8b"]["ctx-size"] == alone[alone.index("-c") + 1]


@pytest.mark.slow
def test_more_at_a_time_than_fit_are_refused(server: pathlib.Path, models: pathlib.Path) -> None:
    done = run(server, "--gpu 8GiB --ram 64GiB", "--models-dir", models, "--models-max", "2")
    assert "--models-max 2: 1 of these 2 models fit at a time: --models-max 1, or" in done.stderr
    assert done.returncode == 2 and not (server.parent / "words").exists()


@pytest.mark.slow
def test_the_routers_own_words_are_every_models_request(
    server: pathlib.Path, models: pathlib.Path
) -> None:
    run(
        server,
        "--gpu 24GiB --ram 64GiB",
        "--models-dir",
        models,
        "-c",
        "4096",
        "-ctk",
        "q8_0",
        "-ctv",
        "q8_0",
    )
    read = preset(started(server))
    assert {read[name]["ctx-size"] for name in read.sections()} == {"4096"}
    assert {read[name]["cache-type-k"] for name in read.sections()} == {"q8_0"}


@pytest.mark.slow
def test_a_models_own_projector_is_part_of_its_plan(
    server: pathlib.Path, models: pathlib.Path
) -> None:
    (models / "seeing").mkdir()
    (models / "gemma.gguf").rename(models / "seeing" / "gemma.gguf")
    gemma = read_model(str(models / "seeing" / "gemma.gguf"))
    (models / "seeing" / "mmproj-gemma.gguf").write_bytes(projector(gemma))
    run(server, "--gpu 24GiB --ram 64GiB", "--models-dir", models)
    assert preset(started(server))["seeing"]["mmproj"] == str(
        models / "seeing" / "mmproj-gemma.gguf"
    )


@pytest.mark.slow
def test_files_that_are_no_models_are_named_and_the_others_planned(
    server: pathlib.Path, models: pathlib.Path
) -> None:
    (models / "broken.gguf").write_bytes(b"GGUF")
    done = run(server, "--gpu 24GiB --ram 64GiB", "--models-dir", models)
    assert done.stderr.count("broken.gguf") == 1 and "Traceback" not in done.stderr
    assert preset(started(server)).sections() == sorted(MODELS.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (),
            "a router of the models that it has downloaded: nothing to plan; --models-dir DIR "
            "plans "
            "those of DIR",
        ),
        slow(
            ("--models-preset", "mine.ini"),
            "--models-preset says how it loads them: nothing to plan",
        ),
    ],
)
def test_without_anything_to_plan_it_says_so_and_starts(
    server: pathlib.Path, words: tuple[str, ...], said: str
) -> None:
    done = run(server, "", *words, "--port", "8080")
    assert (done.returncode, started(server)) == (0, [*words, "--port", "8080"])
    assert done.stderr.count("\n") == 1 and said in done.stderr


@pytest.mark.parametrize(
    ("own", "words", "said"),
    [
        ("--verify", ("--models-dir", "."), "--verify is for a command with a model"),
        slow("--format systemd", ("--models-dir", "."), "--format preset writes the router's"),
        slow(
            "",
            ("--models-dir", "/does/not/exist"),
            "--models-dir /does/not/exist: No such file or directory",
        ),
        slow("", ("--models-dir", TESTS / "logs"), "no GGUF model in it"),
    ],
)
def test_what_cannot_be_is_one_clear_line(
    server: pathlib.Path, own: str, words: tuple[object, ...], said: str
) -> None:
    done = run(server, own, *words)
    assert done.returncode in (2, 3) and done.stderr.count("\n") == 1 and said in done.stderr
    assert not (server.parent / "words").exists()


def test_names_are_the_routers(tmp_path: pathlib.Path) -> None:
    """load_from_models_dir at b11549: a directory is one model, its first part or the last file;
    projectors and drafts belong to it."""
    for name in (
        "a.gguf",
        "mmproj-a.gguf",
        "mtp-a.gguf",
        "notes.txt",
        "deep/deeper/x.gguf",
        "empty/mmproj-x.gguf",
        "split/s-00001-of-00002.gguf",
        "split/s-00002-of-00002.gguf",
        "pair/b.gguf",
        "pair/mmproj-b.gguf",
        "pair/mtp-b.gguf",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = [
        (
            model.name,
            os.path.basename(model.path),
            os.path.basename(model.mmproj or ""),
            os.path.basename(model.draft or ""),
        )
        for model in listed(str(tmp_path))
    ]
    assert found == [
        ("a", "a.gguf", "", ""),
        ("pair", "b.gguf", "mmproj-b.gguf", "mtp-b.gguf"),
        ("split", "s-00001-of-00002.gguf", "", ""),
    ]
