"""Anyone who writes a llama-swap file would get groups that do not fit.

Models at the same time and in turns, from the command line: what is written for llama-swap and
for the router fits when it is read back; docs/several.md's examples. Files have the sizes that
their headers promise.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import launch_targets
import pytest
from support import HEADERS, ROOT, check_examples, gguf, model, seldom, slow, write_gguf

import autolayers
from autolayers import Device
from autolayers.backends.ops import Ops
from autolayers.cli import main
from autolayers.devices import hypothetical
from autolayers.flags.parse import parse
from autolayers.memory.margin import parts
from autolayers.planner.several.groups import beside_router
from autolayers.request import Request

FILES = (
    "llama-3.1-8b-q4_k_m",
    "gemma-3-4b-q8_0",
    "gpt-oss-20b-mxfp4",
    "qwen3-30b-a3b-q4_k_m",
    "qwen2.5-7b-q4_k_m",
)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of models of eight layers, 13 GiB in all, which is the working directory too."""
    for name in FILES:
        write_gguf(tmp_path / f"{name}.gguf", *gguf(f"{name}:8"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.mark.slow
def test_the_documented_examples_print_what_the_page_shows(
    library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in FILES:
        file = library / f"{name}.gguf"
        shutil.copy(HEADERS / file.name, file)
        (warning,) = model(name).header.warnings
        os.truncate(file, int(warning.rpartition("promises ")[2]))  # sparse

    def run(words: list[str]) -> str:
        assert main([*words, *([] if "--format" in words else ["--format", "text"])]) == 0
        out, err = capfd.readouterr()
        assert all(
            "llama-server is not in PATH here" in line or " costs " in line
            for line in err.splitlines()
        )
        return out.replace(str(library), "/models")

    assert check_examples(ROOT / "docs" / "several.md", run) == 2


# --- in turns


def sizes(words: list[str], devices: list[Device]) -> dict[str, int]:
    """Bytes that a launch takes of each device, margins included, as a plan of its own words has
    it."""
    params = parse(words, command=None).params
    plan = autolayers.plan(
        autolayers.read_model(str(params.model)), replace(params, model=None), devices=devices
    )
    assert plan.fits
    return {device.name: device.used + device.margin for device in plan.devices if device.used}


def out_of(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert main(list(words)) == code
    return capfd.readouterr()


MACHINES = ("8GiB", "5GiB,5GiB", "8GiB,3GiB")


@pytest.mark.parametrize("gpu", [slow("8GiB"), "5GiB,5GiB", slow("8GiB,3GiB")])
def test_groups_fit_and_are_as_large_as_can_be(
    gpu: str, library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml")
    text, _ = out_of(capfd, "plan", ".", "--gpu", gpu, "--ram", "64GiB", "--format", "llama-swap")
    file, devices = launch_targets.llama_swap_file(text), hypothetical(gpu)
    taken = {
        name: sizes(shlex.split(entry["cmd"])[3:], devices)
        for name, entry in file["models"].items()
    }
    assert len(taken) == len(FILES)
    groups = list(file.get("groups", {}).values())
    for group in groups:
        assert (group["swap"], group["exclusive"], len(group["members"]) > 1) == (False, True, True)
        for device in devices:
            assert sum(taken[name].get(device.name, 0) for name in group["members"]) <= device.free
    found = json.loads(out_of(capfd, "plan", ".", "--gpu", gpu, "--ram", "64GiB", "--json")[0])
    assert sorted(i for own in found["members"] for i in own) == list(range(len(FILES)))
    assert found["fits"] and {len(own) for own in found["members"] if len(own) > 1} == {
        len(group["members"]) for group in groups
    }
    assert all(
        group["ram_left"] >= 0 and min(group["left"].values()) >= 0 for group in found["groups"]
    )
    assert found["proven"]


@seldom
@pytest.mark.parametrize(
    "gpu", ["8GiB", "5GiB,5GiB", pytest.param("8GiB,3GiB", marks=pytest.mark.slow)]
)
def test_every_set_of_a_matrix_fits_and_needs_fewer_loads_than_groups(
    gpu: str, library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """2000 random requests, most of them for two of the models, through llama-swap's own steps."""
    pytest.importorskip("yaml")
    machine = ("--gpu", gpu, "--ram", "64GiB")
    weights = [8, 1, 3, 1, 5]
    names = [f"{name}.gguf@{weight}" for name, weight in zip(sorted(FILES), weights, strict=True)]
    text, _ = out_of(capfd, "plan", *names, "--swap", *machine, "--format", "llama-swap-matrix")
    words, sets, costs = launch_targets.llama_swap_matrix(text)
    taken, devices = (
        {name: sizes(own, hypothetical(gpu)) for name, own in words.items()},
        hypothetical(gpu),
    )
    assert {name for members in sets for name in members} == set(words) and len(words) == len(FILES)
    for members in sets:
        for device in devices:
            assert sum(taken[name].get(device.name, 0) for name in members) <= device.free
        assert not any(set(members) < set(other) for other in sets)
    requests = random.Random(1).choices(sorted(FILES), weights, k=2000)
    text, _ = out_of(capfd, "plan", *names, "--swap", *machine, "--format", "llama-swap")
    file = launch_targets.llama_swap_file(text)
    grouped = [group["members"] for group in file.get("groups", {}).values()]
    assert launch_targets.swapped(requests, sets, costs) <= launch_targets.swapped(
        requests, grouped, {}
    )


@pytest.mark.slow
def test_a_matrix_of_models_that_fit_together_is_one_set(
    library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml")
    text, _ = out_of(
        capfd, "plan", ".", "--gpu", "40GiB", "--ram", "64GiB", "--format", "llama-swap-matrix"
    )
    words, sets, _ = launch_targets.llama_swap_matrix(text)
    assert sorted(map(sorted, sets)) == [sorted(words)]


@pytest.mark.slow
def test_what_is_asked_for_most_shares_its_group(
    library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two of three fit together: which two follows from how often each is asked for."""
    names = [
        f"{name}.gguf" for name in ("llama-3.1-8b-q4_k_m", "gemma-3-4b-q8_0", "qwen2.5-7b-q4_k_m")
    ]
    for alone in range(3):
        words = [name + ("" if i == alone else "@4") for i, name in enumerate(names)]
        found = json.loads(
            out_of(capfd, "plan", *words, "--swap", "--gpu", "5GiB", "--ram", "64GiB", "--json")[0]
        )
        assert found["proven"] and sorted(map(sorted, found["members"]), key=len) == [
            [alone],
            [i for i in range(3) if i != alone],
        ]


@seldom
@pytest.mark.parametrize("gpu", [*MACHINES, "11GiB", "14GiB,7GiB"])
def test_any_models_up_to_models_max_of_a_preset_fit(
    gpu: str, library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, err = out_of(capfd, "plan", ".", "--gpu", gpu, "--ram", "64GiB", "--format", "preset")
    (most,) = map(
        int,
        re.findall(
            r"^# llama-server --models-preset FILE --models-max "
            r"(\d+)$",
            text,
            re.MULTILINE,
        ),
    )
    devices = hypothetical(gpu)
    taken = [sizes(launch_targets.preset(f"[{part}"), devices) for part in text.split("\n[")[1:]]
    assert (
        len(taken) == len(FILES)
        and most >= {"11GiB": 2, "14GiB,7GiB": 4}.get(gpu, 1)
        and "max is 1" not in err
    )
    for device in devices:
        assert (
            sum(sorted((own.get(device.name, 0) for own in taken), reverse=True)[:most])
            <= device.free
        )


@pytest.mark.slow
def test_named_models_take_turns_where_they_must(
    library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    large = ["qwen3-30b-a3b-q4_k_m.gguf", "gpt-oss-20b-mxfp4.gguf"]
    machine = ["--gpu", "3GiB", "--ram", "4GiB", "-c", "4096"]
    text, err = out_of(capfd, "plan", *large, *machine, "--format", "llama-swap")
    assert "they take turns" in err and "groups:" not in text and text.count("cmd:") == 2
    swap = ["--swap", "--gpu", "7GiB", "-c", "4096", "--format", "flags"]
    first, _ = out_of(capfd, "plan", *large, *swap)
    alone = [out_of(capfd, "plan", name, *swap)[0] for name in large]
    assert first == "".join(alone)


@seldom
@pytest.mark.parametrize(
    "form",
    [
        "json",
        "preset",
        *(pytest.param(form, marks=pytest.mark.slow) for form in ("text", "flags", "llama-swap")),
    ],
)
def test_models_take_turns_on_a_processor_alone(
    form: str, library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where there is no device, RAM alone says which fit at the same time."""
    for ram, code in (("24GiB", 0), ("9GiB", 0), ("1GiB", 5)):
        text, err = out_of(
            capfd, "plan", ".", "-dev", "none", "--ram", ram, "--format", form, code=code
        )
        assert all(name in text for name in FILES) or form == "json", (ram, err)
        if form == "json":
            assert json.loads(text)["fits"] == (code == 0)
            assert sorted(i for own in json.loads(text)["members"] for i in own) == list(
                range(len(FILES))
            )


def test_what_does_not_fit_is_named_with_the_way_out(
    library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = [f"{name}.gguf" for name in FILES[:2]]
    _, err = out_of(
        capfd, "plan", *names, "--gpu", "1GiB", "--ram", "1GiB", "--format", "flags", code=5
    )
    lines = err.splitlines()
    assert lines[-1] == "autolayers: they do not fit together: --swap plans them in turns"
    for name in names:
        assert sum(line.startswith(f"autolayers: {name}: does not fit: ") for line in lines) == 1
    text, _ = out_of(
        capfd, "plan", *names, "--gpu", "1GiB", "--ram", "1GiB", "--format", "text", code=5
    )
    assert all(f"! {name}: the launch needs" in text for name in names)
    _, err = out_of(capfd, "plan", *names, "--gpu", "24GiB", "--port", "80", "--format", "flags")
    assert err == "autolayers: --port applies to every model here: set one port per model\n"


@pytest.mark.slow
def test_what_cannot_be_read_is_one_line(library: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (library / "broken.gguf").write_bytes(b"GGUF")
    for kind in ("flags", "preset"):
        text, err = out_of(capfd, "plan", ".", "--gpu", "24GiB", "--format", kind)
        assert sum("broken.gguf" in line for line in err.splitlines()) == 1 and "broken" not in text
        assert text.count(".gguf") == len(FILES)


def test_a_name_that_no_preset_can_hold_is_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the others of its directory are served."""
    for name in ("a", "b#c"):
        (tmp_path / f"{name}.gguf").write_bytes((HEADERS / "llama-3.2-1b-q8_0.gguf").read_bytes())
    text, err = out_of(
        capfd, "plan", str(tmp_path), "--gpu", "24GiB", "--ram", "64GiB", "--format", "preset"
    )
    assert (
        "[a]" in text
        and "b#c" not in text
        and "b#c.gguf': a preset cannot hold it" in err
        and "left out" in err
    )


# --- some stay


@pytest.mark.slow
def test_what_is_kept_fits_beside_every_group(
    library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An embedding model that shares a group with some would be read again with each question."""
    pytest.importorskip("yaml")
    gpu, kept = "6GiB", "gemma-3-4b-q8_0"
    words = ["plan", ".", "--gpu", gpu, "--ram", "64GiB", "--stay", kept]
    text, _ = out_of(capfd, *words, "--format", "llama-swap")
    file, devices = launch_targets.llama_swap_file(text), hypothetical(gpu)
    groups = dict(file["groups"])
    assert groups.pop("kept") == {
        "swap": False,
        "exclusive": False,
        "persistent": True,
        "members": [kept],
    }
    taken = {
        name: sizes(shlex.split(entry["cmd"])[3:], devices)["CUDA0"]
        for name, entry in file["models"].items()
    }
    assert set(taken) == set(FILES)
    # what is not used for long is unloaded, but for what stays: a load is a sixtieth of that
    idle = {name: entry["ttl"] for name, entry in file["models"].items()}
    assert idle.pop(kept) == 0
    for name, seconds in idle.items():
        assert 5 + model(f"{name}:8").size / 2.5e9 < seconds / 60 < 15
    grouped = [group["members"] for group in groups.values()]
    alone = set(FILES) - {kept} - {name for members in grouped for name in members}
    for members in [*grouped, *([name] for name in alone)]:
        assert kept not in members
        assert taken[kept] + sum(map(taken.get, members)) <= devices[0].free
    routing = launch_targets.llama_swap_matrix(
        out_of(capfd, *words, "--format", "llama-swap-matrix")[0]
    )
    assert all(kept in members for members in routing[1])
    words[words.index(gpu)] = "40GiB"
    for form in ("llama-swap", "llama-swap-matrix"):  # nothing waits for the memory of any
        text, _ = out_of(capfd, *words[:-2], "--format", form)
        assert text.count("ttl: 0") == len(FILES) == text.count("ttl:")
    found = json.loads(out_of(capfd, *words, "--json")[0])
    assert list(found["kept"]) == [str(sorted(FILES).index(kept))]
    assert "names none of the models" in out_of(capfd, *words[:-1], "x", code=2)[1]
    assert "used least recently" in out_of(capfd, *words, "--format", "preset", code=2)[1]


# --- the router


@pytest.mark.parametrize(
    ("gpu", "most", "given"),
    [
        ("40GiB", 3, 2),
        *(slow("40GiB", 3, given) for given in (1, 3)),
        *(slow("4GiB", 1, given) for given in (1, 2, 3)),
    ],
)
def test_a_given_models_max_is_kept_or_refused(
    gpu: str, most: int, given: int, library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A preset for one model beside the user's --models-max 2 would run out of memory."""
    words = ["plan", *(f"{name}.gguf" for name in FILES[:3]), "--ram", "64GiB"]
    words += ["--gpu", gpu, "--models-max", str(given), "--format", "preset"]
    text, err = out_of(capfd, *words, code=0 if given <= most else 2)
    assert (f"--models-max {given}\n" in text) == (given <= most), err
    assert (f"--models-max {given}: {most} of these 3 models fit" in err) == (given > most)
    assert "does not belong to one model" not in err


@pytest.mark.parametrize(
    ("build", "holds"), [(8247, 0), (8248, 1), (9159, 1), (9300, 1), (11549, 0)]
)
def test_what_the_router_itself_holds_is_no_models(build: int, holds: int) -> None:
    """Builds of b8248 to b9159 had a CUDA context in the router too; when it went is not known to
    the build."""
    words = ["--gpu", "rtx-3060,rtx-3060", "--ram", "16GiB", "--llama-build", str(build)]
    request = Request.of(parse(words, command="plan"), {})
    devices = request.machine.devices
    left = beside_router(request).machine
    context = dict(parts(devices[0], Ops(n_tokens=1)))["CUDA context"]
    assert context > 100 << 20 and request.machine.ram is not None and left.ram is not None
    for name, limit in request.machine.limits.items():
        assert limit - left.limits[name] == holds * context
    assert 0 < request.machine.ram - left.ram < 1 << 30
