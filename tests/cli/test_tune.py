"""Anyone who lets candidates be measured would lose hours, or keep the slower one.

`autolayers tune` with a llama-bench whose rates the tests know: real processes, state files and
exit codes.
"""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from support import TESTS, few_rows, gguf, says, slow, until, write_gguf

from autolayers.launch import tune
from autolayers.launch.speed_rows import check

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="programs that are shell scripts, signals"
)
# 1.8 GiB: some layers of it fit on the GPU below
MODEL = gguf("llama-3.1-8b-q4_k_m:8")
GPU = "  CUDA0: NVIDIA GeForce GTX 1650 (4096 MiB, 1800 MiB free)"
BENCH_HELP = """
usage: llama-bench [options]
  --version
  -r, --repetitions <n>
  -o, --output <csv|json|jsonl|md|sql>
  -m, --model <filename>
  -p, --n-prompt <n>
  -n, --n-gen <n>
  -d, --n-depth <n>
  -b, --batch-size <n>
  -ub, --ubatch-size <n>
  -ctk, --cache-type-k <t>
  -t, --threads <n>
  -ngl, --n-gpu-layers <n>
  -fa, --flash-attn <on|off|auto>
  -ot --override-tensor <tensor name pattern>=<buffer type>;...
"""


class Fakes:
    """llama-server and llama-bench in one directory, and the state directory of their machine."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.program("llama-server", "server")
        self.program(
            "llama-bench",
            "bench",
            f'exec {shlex.quote(sys.executable)} -S -E "$here/bench.py" "$@"',
        )
        (path / "bench.py").write_text((TESTS / "fake_llama_bench.py").read_text())
        (path / "bench-help").write_text(BENCH_HELP)
        (path / "server-help").write_text(
            "-ngl,  --gpu-layers N\n-c\n-ot\n-ncffn\n-ub\n-b\n-fa,   --flash-attn [on|off|auto]\n"
        )
        (path / "devices").write_text(f"Available devices:\n{GPU}\n")
        for name in ("server", "bench"):
            (path / f"{name}-version").write_text("version: 10900 (abcdef12)\n")
        self.model = write_gguf(path / "a-model.gguf", *MODEL)
        self.scenario({"words": ""})

    def program(self, name: str, kind: str, else_: str = "exit 0") -> None:
        (self.path / name).write_text(
            f'#!/bin/sh\nhere=$(dirname "$0")\ncase " $* " in *" --version "*) exec cat '
            f'"$here/{kind}-version";; '
            f'*" --help "*) exec cat "$here/{kind}-help";; *" --list-devices "*) exec cat '
            f'"$here/devices";; esac\n'
            f"{else_}\n"
        )
        (self.path / name).chmod(0o755)

    def scenario(self, *entries: dict[str, object]) -> None:
        (self.path / "scenario.json").write_text(json.dumps(entries))

    def words(self, command: str, *more: str, own: tuple[str, ...] = ()) -> list[str]:
        server = str(self.path / "llama-server")
        return [command, *own, server, "-m", str(self.model), "-c", "8192", *more]

    def run(
        self, command: str = "tune", *more: str, own: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        return says(*self.words(command, *more, own=own), environ=self.environ)

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
        return {
            **kept,
            "XDG_STATE_HOME": str(self.path / "state"),
            "XDG_CONFIG_HOME": str(self.path),
        }

    @property
    def measured(self) -> list[list[str]]:
        """The words of each run of llama-bench but the first, short one."""
        lines = (self.path / "bench.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines][1:]

    @property
    def kept(self) -> list[pathlib.Path]:
        return list((self.path / "state" / "autolayers" / "tuned").glob("*.json"))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Fakes]:
    """Measured on the CPU alone, where the launch with these words was the fastest."""

    @cache
    def measured(fastest: str) -> Fakes:
        fakes = Fakes(tmp_path_factory.mktemp("tuned"))
        (fakes.path / "devices").write_text("Available devices:\n")
        fakes.scenario(
            {"words": fastest or "-c", "token": 1e5},
            {"words": "-ub 2048", "token": 2e4},
            {"words": "-fa off", "token": 2e4},
            {"words": "", "token": 5e4},
        )
        assert fakes.run().stdout.endswith(f" -ngl 0 {fastest}".rstrip() + "\n")
        return fakes

    return measured


@pytest.fixture
def fakes(tmp_path: pathlib.Path) -> Fakes:
    return Fakes(tmp_path)


def test_the_fastest_measured_is_kept_and_later_runs_use_it_and_say_so(fakes: Fakes) -> None:
    before = fakes.run("run", own=("--dry-run",))
    fakes.scenario({"words": "-ub 1024", "token": 1e5}, {"words": "", "token": 2e3})
    done = fakes.run(own=("--json",))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert 3 <= len(answer["launches"]) <= 5
    assert answer["launches"][0]["placement"].endswith(", -ub 1024")
    assert answer["launches"][0]["seconds"] == min(row["seconds"] for row in answer["launches"])
    words = " ".join(answer["command"])
    assert " -ub 1024 " in f"{words} " and " -ub 1024 " not in f"{before.stdout} "
    after = fakes.run("run", own=("--dry-run",))
    assert after.stdout.split() == answer["command"]
    assert after.stderr.count("measured by autolayers tune on 20") == 1
    # other flags and another build are another question
    assert "autolayers tune" not in fakes.run("run", "-ctk", "q8_0", own=("--dry-run",)).stderr
    (fakes.path / "server-version").write_text("version: 10901 (badc0de1)\n")
    assert "autolayers tune" not in fakes.run("run", own=("--dry-run",)).stderr


@pytest.mark.slow
def test_an_answer_that_does_not_fit_now_is_not_used(fakes: Fakes) -> None:
    (fakes.path / "devices").write_text("Available devices:\n" + GPU.replace("1800", "2000") + "\n")
    assert fakes.run().returncode == 0
    (fakes.path / "devices").write_text("Available devices:\n" + GPU.replace("1800", "1000") + "\n")
    after = fakes.run("run", own=("--dry-run",))
    assert after.returncode == 0 and "does not fit now: predicted again" in after.stderr


@pytest.mark.parametrize(
    ("form", "fastest", "out", "line"),
    few_rows(
        2,
        [
            ("text", "-fa off", "- measured by autolayers tune on 20", ""),
            ("json", "-fa off", '"measured by autolayers tune on 20', ""),
            (
                "flags",
                "-fa off",
                "-ngl 0 -c 8192 -fa off\n",
                "autolayers: measured by autolayers tune on 20",
            ),
            (
                "systemd",
                "-fa off",
                " -ngl 0 -c 8192 -fa off\n",
                "autolayers: measured by autolayers tune on 20",
            ),
            ("number", "-fa off", "9\n", "that -ngl alone does not say: -ngl 0 -c 8192 -fa off (1"),
            ("number", "", "0\n", "autolayers: measured by autolayers tune on 20"),
            ("koboldcpp", "-fa off", "koboldcpp ", ""),  # another program
        ],
    ),
)
def test_every_form_of_a_plan_uses_it_and_says_so(
    tuned: Callable[[str], Fakes], form: str, fastest: str, out: str, line: str
) -> None:
    fakes = tuned(fastest)
    plan = says(fakes.model, "-c", "8192", "--format", form, environ=fakes.environ)
    if "GPU" in plan.stderr:  # no GPU found: the machine that was measured
        assert out in plan.stdout and line in plan.stderr
        assert "autolayers tune" in plan.stdout + plan.stderr or form == "koboldcpp"


@pytest.mark.parametrize(
    ("does", "line"),
    few_rows(
        1,
        [
            slow("fail", "exit code 1: main: error: failed to load model 'm.gguf'"),
            ("hang", "it did not end within"),
            pytest.param("kill", "ended by signal 9", marks=pytest.mark.slow),
            pytest.param("nonsense", "no prompt of", marks=pytest.mark.slow),
            slow("jump", "a clock jumped"),
            pytest.param("other", "no generation of", marks=pytest.mark.slow),
        ],
    ),
)
def test_a_launch_that_cannot_be_measured_is_one_line(fakes: Fakes, does: str, line: str) -> None:
    fakes.scenario({"words": "-ub 1024", "token": 1e5}, {"words": "", "does": does})
    limit = ("--limit", "8s" if does == "hang" else "1h")
    done = fakes.run(own=limit)
    of_it = [
        text for text in done.stderr.splitlines() if ": not measured: " in text and line in text
    ]
    if does == "hang":  # nothing is left for the others
        assert (
            done.returncode == 1
            and done.stderr.splitlines()[-1] == "autolayers: no launch could be measured"
        )
        return
    assert done.returncode == 0 and of_it, done.stderr
    assert all(
        "\x1b" not in text and text.startswith("autolayers: ") for text in done.stderr.splitlines()
    )
    fakes.scenario({"words": "", "does": does})
    assert fakes.run(own=limit).returncode == 1


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_known(fakes: Fakes) -> None:
    fakes.scenario({"words": "-ub 1024", "does": "hang"}, {"words": ""})
    child = subprocess.Popen(
        [sys.executable, "-m", "autolayers", *fakes.words("tune")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=fakes.environ,
    )
    until(
        lambda: (
            (fakes.path / "bench.jsonl").exists()
            and any("-ub 1024" in " ".join(words) for words in fakes.measured)
        )
    )
    child.send_signal(signal.SIGINT)
    out, error = child.communicate(timeout=300)
    assert child.returncode == 130 and "interrupted: " in error
    assert "llama-server" in out and len(fakes.kept) == 1


@pytest.mark.slow
def test_a_launch_that_failed_is_not_counted_as_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter((0.0, 1.0, 1.0, 2.0, 11.0))
    monkeypatch.setattr(tune, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(tune, "_measure", lambda *_: None)
    rivals: Any = [SimpleNamespace(n_ctx_seq=4096)] * 2
    outcome = tune.quick(rivals, SimpleNamespace(), limit=10)  # type: ignore[arg-type]
    assert outcome.measured == () and "0 of 2 measured" in capsys.readouterr().err


def test_a_launch_whose_logits_have_no_room_in_llama_bench_is_not_measured(fakes: Fakes) -> None:
    """llama-server keeps logits of one token a slot; llama-bench of -ub 2048 tokens, 1002 MiB for
    this vocabulary."""
    done = fakes.run(own=("--json",))
    refused = [
        line
        for line in done.stderr.splitlines()
        if "keeps the logits of a whole micro-batch" in line
    ]
    assert any(", -ub 2048: not measured: llama-bench" in line for line in refused)
    assert not any("-ub 2048" in " ".join(words) for words in fakes.measured)
    (fakes.path / "devices").write_text(
        "Available devices:\n  CUDA0: NVIDIA GeForce RTX 3090 (24576 MiB, 24000 MiB free)\n"
    )
    assert "not measured" not in fakes.run(own=("--json",)).stderr


@pytest.mark.slow
def test_flags_are_translated_and_those_that_it_lacks_named(fakes: Fakes) -> None:
    done = fakes.run("tune", "--poll", "10", "--port", "8080", "-ctk", "q8_0", "-ctv", "q8_0")
    assert "autolayers: llama-bench has no --poll, --port, -ctv: measuring without\n" in done.stderr
    assert all(
        "-ctk" in words and "-ctv" not in words and "-c" not in words for words in fakes.measured
    )


@pytest.mark.slow
def test_shared_rows_are_what_the_fit_reads_and_name_nobody(fakes: Fakes) -> None:
    done = fakes.run("tune", "-a", "secret-name", own=("--share", "-"))
    assert done.returncode == 0
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["kind"] for row in rows} == {"tg", "pp"} and len(
        {row["id"] for row in rows}
    ) == len(rows) >= 4
    assert [check(row) for row in rows] == [""] * len(rows)
    assert (
        rows[0]["model"] == "llama-2.8b-q4_k"
        and rows[0]["machine"]["devices"][0]["card"] == "gtx-1650"
    )
    for name in (str(fakes.path), fakes.model.stem, "secret-name", "/home/me", os.uname().nodename):
        assert name not in done.stdout


@pytest.mark.slow
def test_a_test_is_no_larger_than_the_context(fakes: Fakes) -> None:
    done = fakes.run(
        "tune", "-c", "1024", "-np", "1", own=("--share", str(fakes.path / "no" / "rows.jsonl"))
    )
    assert (
        done.returncode == 1
        and "no such file or directory" in done.stderr.lower()
        and "llama-server" in done.stdout
    )
    asked = [
        [int(words[words.index(flag) + 1]) for flag in ("-p", "-n", "-d")]
        for words in fakes.measured
    ]
    assert asked and all(sum(sizes) <= 1024 for sizes in asked)


@pytest.mark.slow
def test_state_that_is_nonsense_counts_for_nothing(fakes: Fakes) -> None:
    assert fakes.run().returncode == 0
    entries = json.loads(fakes.kept[0].read_text())
    for broken in (
        [{**entries[0], "flags": 5}],
        [{**entries[0], "token": "fast"}],
        "{",
        [{**entries[0], "prompt": float("nan")}],
        [None],
        [{**entries[0], "flags": ["--no-such-flag"]}],
    ):
        fakes.kept[0].write_text(broken if isinstance(broken, str) else json.dumps(broken))
        after = fakes.run("run", own=("--dry-run",))
        assert after.returncode == 0 and "autolayers tune" not in after.stderr


@pytest.mark.parametrize(
    ("own", "code", "line"),
    [
        (("--limit", "soon"), 2, "--limit"),
        (("--llama-bench", "no-such-bench"), 127, "no-such-bench: not found"),
        (("--llama-bench", "cat"), 1, "not llama-bench, by its --help"),
        (("--retry", "2"), 2, "--retry is no flag of autolayers tune"),
        (("--budget", "CUDA0=1MiB", "--margin", "2000GiB"), 5, ""),
    ],
)
def test_wrong_usage_is_one_line(fakes: Fakes, own: tuple[str, ...], code: int, line: str) -> None:
    done = fakes.run(own=own)
    assert (done.returncode, line in done.stderr) == (code, True), done.stderr


def test_another_builds_llama_bench_is_refused(fakes: Fakes) -> None:
    (fakes.path / "bench-version").write_text("version: 10901 (badc0de1)\n")
    done = fakes.run()
    assert done.returncode == 1 and "is commit badc0de1, llama-server abcdef12" in done.stderr


def test_every_measurement_corrects_later_predictions(fakes: Fakes) -> None:
    """--quick measures one launch of each kind; --forget drops them."""
    before = json.loads(says("devices", "--json", environ=fakes.environ).stdout)
    assert "measured" not in before
    fakes.scenario({"words": "", "prompt": 9000.0, "token": 600.0})
    done = says(
        "tune",
        "--quick",
        "--llama-bench",
        fakes.path / "llama-bench",
        "--limit",
        "60s",
        "--json",
        *fakes.words("")[1:],
        environ=fakes.environ,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["measured"]
    assert {(row["class"], row["kind"]) for row in rows} == {
        ("dense partial", "tg"),
        ("dense partial", "pp"),
    }
    assert all(row["n"] == 1 and row["build"] == 10900 and 1 < row["ratio"] < 20 for row in rows)
    assert "at most 60 s" in done.stderr and "1 of 1: " in done.stderr
    state = fakes.path / "state" / "autolayers" / "calibration.json"
    assert [entry["ratio"] for entry in json.loads(state.read_text())] == [
        row["ratio"] for row in rows
    ]
    again = says("tune", "--forget", environ=fakes.environ)
    assert again.returncode == 0 and "2 measured speeds" in again.stderr
    assert json.loads(state.read_text()) == []
