"""People and scripts would find other words, streams or exit codes than the documents promise.

The command line as users meet it: its words, its two streams and its exit code; each command as
a process once.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from companion_files import adapter
from support import HEADERS, ROOT, gguf, model, requantised, says, slow, write_gguf

from autolayers.quoting import systemd

NOWHERE = "/dev/null/home"  # where nobody, root included, can make a directory
DENSE, MOE = str(HEADERS / "llama-3.2-1b-q8_0.gguf"), str(HEADERS / "gpt-oss-20b-mxfp4.gguf")


def environ(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}
    return {**kept, "HOME": NOWHERE, "XDG_CONFIG_HOME": NOWHERE, **more}


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return says(*words, environ=environ(**(env or {})))


@pytest.mark.parametrize(
    "words",
    [
        slow([DENSE, "--gpu", "24GiB"]),
        slow([DENSE, "--gpu", "1GiB", "-ngl", "99"]),
        slow(["plan", DENSE, DENSE, "--gpu", "24GiB", "--json"]),
        ["nowhere.gguf"],
        [],
        ["--help"],
        ["--version"],
        slow(["inspect", DENSE]),
        slow(["devices", "--gpu", "list"]),
        slow(["sweep", DENSE, "--gpus", "24GiB", "--types", "f16", "--contexts", "4096"]),
        slow(["choose", DENSE, "--gpu", "24GiB", "--ram", "64GiB"]),
        slow(["cluster", "docs/cluster.json", DENSE]),
        slow(["rules", "--params", "8B"]),
        slow(["check", "--llama-server", "nowhere"]),
        slow(["tune", "nowhere"]),
        slow(["run", "--dry-run", "--gpu", "24GiB", "llama-server", "-m", DENSE]),
        slow(["ollama", "plan", DENSE, "--gpu", "24GiB"]),
        ["completion", "bash"],
        ["web", "--port", "x"],
    ],
    ids=lambda words: " ".join(words[:1]) or "nothing",
)
def test_a_process_says_the_same(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autolayers", *words],
        cwd=ROOT,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    here = run(*words)
    assert (done.returncode, done.stdout, done.stderr) == (
        here.returncode,
        here.stdout,
        here.stderr,
    )
    assert done.stdout + done.stderr


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The file of a model's first eight layers."""
    place = tmp_path_factory.mktemp("models")
    return lambda name: str(write_gguf(place / f"{name}.gguf", *gguf(f"{name}:8")))


def all_of(terminal: int) -> str:
    """What a terminal was sent, which comes in parts, until nobody can send more."""
    parts = []
    with contextlib.suppress(OSError):  # the other side is gone
        while part := os.read(terminal, 65536):
            parts.append(part)
    return b"".join(parts).decode()


def on_a_terminal(*words: str, env: dict[str, str] | None = None) -> str:
    """stdout of a process whose stdout is a terminal."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", **(env or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "autolayers", *words],
        cwd=ROOT,
        env=environ,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    said = all_of(ours)
    process.wait(300)
    os.close(ours)
    return said.replace("\r\n", "\n")


class TestOutput:
    def test_a_pipe_gets_one_line_of_flags(self) -> None:
        found = run(DENSE, "--gpu", "24GiB")
        assert (found.returncode, found.stdout) == (0, "-ngl 17 -c 131072\n")

    def test_the_users_other_words_stay_behind_them(self) -> None:
        assert (
            run(DENSE, "--gpu", "24GiB", "--port", "8080").stdout
            == "-ngl 17 -c 131072 --port 8080\n"
        )

    def test_json_has_the_flags_that_touch_no_memory_too(self) -> None:
        """A front end that builds its command from it would lose the port."""
        words = ("--temp", "0.7", "--port", "9000", "--api-key", "hush")
        found = json.loads(run(DENSE, "--gpu", "24GiB", "--json", *words).stdout)
        assert found["other_flags"] == ["--temp", "0.7", "--port", "9000"]
        assert found["flags"] == ["-ngl", "17", "-c", "131072"]

    def test_a_processor_that_is_asked_for_is_no_missing_gpu(self) -> None:
        plan = run(DENSE, "--backend", "cpu", "-c", "4096")
        assert plan.returncode == 0 and "no GPU" not in plan.stderr

    def test_an_adapter_keeps_its_scale_wherever_a_launch_is_written(self, tmp_path: Path) -> None:
        (tmp_path / "a.gguf").write_bytes(adapter(model("llama-3.2-1b-q8_0")))
        words = (DENSE, "--gpu", "24GiB", "-c", "4096", "--lora-scaled", "a.gguf:0.5")
        for kind in ("flags", "text", "json", "systemd", "docker", "llama-swap"):
            out = says(*words, "--format", kind, cwd=tmp_path).stdout
            assert re.search(r"--lora-scaled\W+\S*a\.gguf:0\.5", out), kind

    @pytest.mark.parametrize("word", [slow("-v"), "--verbose", slow("--log-verbose")])
    def test_v_is_about_the_page_where_there_is_one(self, word: str) -> None:
        words = (DENSE, "--gpu", "24GiB", "-a", "-v", word)
        assert run(*words).stdout == f"-ngl 17 -c 131072 -a -v {word}\n"
        page = run(*words, "--format", "text").stdout
        assert (
            "margin on CUDA0: " in page
            and f"\nllama-server -m {shlex.quote(str(DENSE))} -ngl 17 -c 131072 -a -v\n" in page
        )
        several = run(DENSE, *words, "--format", "text").stdout.splitlines()
        assert [line[-6:] for line in several if line.startswith("  llama-server ")] == [
            " -a -v"
        ] * 2

    def test_q_is_the_number(self) -> None:
        assert run(DENSE, "--gpu", "24GiB", "-q").stdout == "17\n"

    @pytest.mark.parametrize(
        ("words", "code", "message"),
        [
            (["--gpu", "24GiB", "--ram", "4GiB"], 0, "-cram"),
            slow(["--gpu", "1.5GiB", "--ram", "2GiB", "-fit", "off"], 5, "this does: -ngl"),
            slow(["--gpu", "1GiB", "-ngl", "99"], 5, "does not fit"),
            (["--gpu", "8GiB", "--kv-types", "f16,q8_0"], 2, "--format flags"),
            ([MOE, "--gpu", "24GiB"], 2, "for one model"),
        ],
    )
    def test_q_prints_no_number_that_needs_other_flags(
        self, words: list[str], code: int, message: str
    ) -> None:
        found = run(DENSE, *words, "-q")
        assert found.returncode == code and message in found.stderr
        assert found.stdout.strip().isdigit() == (code == 0)

    @pytest.mark.slow
    def test_json_is_the_librarys_answer(self) -> None:
        import autolayers

        found = json.loads(run(DENSE, "--gpu", "24GiB", "--json", "-c", "8192").stdout)
        model = autolayers.read_model(DENSE)
        assert (
            found
            == autolayers.plan(model, ["-c", "8192", "--gpu", "24GiB"], explain=True).to_dict()
        )

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("words", "ram", "fits"),
        [
            slow(["m2-8g"], 8, False),
            (["M2 16GB"], 16, True),
            slow(["m2-16g", "--ram", "8GiB"], 8, False),
            # no more is there
            slow(["m2-8g", "--ram", "16GiB"], 8, False),
            slow(["m2-16g", "--ram", "32GiB"], 16, True),
        ],
    )
    def test_memory_that_the_gpu_shares_is_counted_once(
        self, words: list[str], ram: int, fits: bool, tmp_path: Path
    ) -> None:
        # 8.7 GiB
        model = write_gguf(tmp_path / "m.gguf", *requantised("llama-3.1-8b-q4_k_m:16", "f16"))
        found = run(str(model), "--json", "--gpu", *words)
        plan = json.loads(found.stdout)
        host, gpu = plan["host"], plan["devices"][0]
        # macOS takes 3.5 GiB
        assert host["shared"] == gpu["used"] > 0 and host["free"] == (2 * ram - 7) << 29
        assert host["needed"] == host["resident"] + gpu["used"] + host["growing"] + host["margin"]
        assert (found.returncode == 0) == plan["fits"] == (host["needed"] <= host["free"]) == fits

    def test_what_is_off_the_hosts_memory_but_in_no_column(self) -> None:
        plan = json.loads(run(DENSE, "--gpu", "m2-16g", "--json").stdout)["host"]
        text = " ".join(run(DENSE, "--gpu", "m2-16g", "--format", "text").stdout.split())
        shared = plan["shared"] / (1 << 30)
        growing = plan["growing"] / (1 << 30)
        assert (
            f"{shared:.2f} GiB of RAM are the GPU's; serving may add up to {growing:.2f} GiB of "
            f"RAM (" in text
        )

    def test_a_table_that_is_asked_for_goes_into_a_pager_too(self) -> None:
        done = says(DENSE, "--gpu", "24GiB", "--table")
        assert "margin" in done.stdout and "llama-server -m" in done.stdout

    def test_a_terminal_gets_a_table(self) -> None:
        text = on_a_terminal(DENSE, "--gpu", "24GiB", "--table", env={"NO_COLOR": "1"})
        assert "CUDA0" in text and "margin" in text and "KV" in text
        assert (
            "fits if 924.13 MiB of RAM are free" in text
            and f"\nllama-server -m {shlex.quote(str(DENSE))} -ngl 17 -c 131072\n"
            in text.replace(" \\\n  ", " ")
        )
        assert "\x1b" not in text and text.index("-ngl 17") < text.index("--fit")

    def test_with_colour_where_that_is_wanted(self) -> None:
        assert "\x1b[" in on_a_terminal(DENSE, "--gpu", "24GiB", env={"NO_COLOR": ""})
        assert "\x1b[" not in on_a_terminal(
            DENSE, "--gpu", "24GiB", env={"NO_COLOR": "", "TERM": "dumb"}
        )

    @pytest.mark.slow
    def test_the_layer_that_did_not_fit_is_named_with_what_is_missing(self) -> None:
        text = run(DENSE, "--gpu", "1.6GiB", "--strategy", "layers", "--format", "text").stdout
        count = int(text.split(" of 17 layers")[0].split()[-1])
        assert 0 < count < 17
        assert f"layer {count + 1} of 17 would take" in text and "MiB missing" in text

    def test_other_formats_are_the_launchers(self) -> None:
        text = run(DENSE, "--gpu", "24GiB", "--format", "systemd").stdout
        assert "ExecStart=" in text and "-ngl 17" in text

    def test_flags_and_numbers_for_a_launch_that_does_not_fit_end_in_5(self) -> None:
        found = run(DENSE, "--gpu", "1GiB", "-ngl", "99", "-c", "4096")
        assert (found.returncode, found.stdout) == (5, "-ngl 99 -c 4096\n")
        assert "does not fit" in found.stderr and "missing on CUDA0" in found.stderr

    def test_what_the_environment_says_counts(self) -> None:
        assert (
            run(DENSE, "--gpu", "24GiB", env={"LLAMA_ARG_CTX_SIZE": "2048"}).stdout
            == "-ngl 17 -c 2048\n"
        )

    def test_the_model_as_llama_server_names_it(self) -> None:
        assert run("-m", DENSE, "--gpu", "24GiB", "-q").stdout == "17\n"

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "words", "build", "flag"),
        [
            ("llama-3.3-70b-q4_k_m", ["-c", "16384"], 11549, "-ncffn"),
            pytest.param(
                "llama-3.3-70b-q4_k_m", ["-c", "16384"], 9300, "-ot", marks=pytest.mark.slow
            ),
            ("llama-3.3-70b-q4_k_m", [], 4000, "-ngl"),
            ("qwen3-30b-a3b-q4_k_m", [], 6000, "-ot"),
            ("qwen3-30b-a3b-q4_k_m", ["-cmoe", "-fa", "on"], 6000, "-fa"),
            pytest.param(
                "qwen3-30b-a3b-q4_k_m",
                ["-cmoe", "-fa", "on"],
                9300,
                "-cmoe",
                marks=pytest.mark.slow,
            ),
        ],
    )
    def test_an_older_build_gets_flags_that_it_knows(
        self, name: str, words: list[str], build: int, flag: str, eight: Callable[[str], str]
    ) -> None:
        from autolayers.builds import Build

        model, machine = eight(name), ["--gpu", "3000MiB", "--llama-build", str(build)]
        plan = json.loads(run(model, *machine, *words, "--json").stdout)
        flags = plan["flags"]
        assert plan["fits"] and flag in flags
        assert all(Build(build).knows(word) for word in flags if word.startswith("-"))
        assert "on" not in flags or build >= 6325  # before, -fa was a switch
        again = json.loads(run(model, *machine, *flags, "--json").stdout)
        assert (again["devices"], again["placement"]) == (plan["devices"], plan["placement"])
        started = run("run", "--dry-run", *machine, "./serve.sh", "-m", model, *words).stdout
        placed = [word for word in flags if word in ("-ot", "-ncffn", "-ncmoe") or "=CPU" in word]
        assert "-cmoe" in words or all(word in shlex.split(started) for word in placed)

    @pytest.mark.parametrize("command", [[], ["choose"]])
    def test_the_parts_of_a_split_model_are_one_model(self, command: list[str]) -> None:
        parts = sorted(map(str, (ROOT / "fixtures" / "tiny").glob("split-*.gguf")))
        whole, again = (
            run(*command, *names, "--gpu", "8GiB", "--json") for names in (parts[:1], parts)
        )
        assert len(parts) == 3 and whole.returncode == 0
        assert (again.stdout, again.stderr) == (whole.stdout, whole.stderr)
        # the same model twice
        assert run(parts[0], parts[0], "--gpu", "8GiB").stdout.count("\n") == 2

    @pytest.mark.parametrize("words", [[], ["-m"]])
    def test_llama_server_takes_the_first_part(self, words: list[str]) -> None:
        second = str(ROOT / "fixtures" / "tiny" / "split-00002-of-00003.gguf")
        found = run(*words, second, "--gpu", "8GiB", "--format", "systemd")
        first = second.replace("00002-of", "00001-of")
        assert f"by its first part: -m {shlex.quote(first)}\n" in found.stderr
        assert f" -m {systemd(first)} " in found.stdout and second not in found.stdout


class TestErrors:
    @pytest.mark.parametrize(
        ("words", "code", "message"),
        [
            (["nowhere.gguf"], 3, "nowhere.gguf: no such file"),
            ([""], 3, "the model's name is empty"),
            (["devices", "--llama-server", "/nowhere"], 4, "/nowhere: no such program"),
            ([DENSE, "--gpu", "300x24GiB"], 2, "llama.cpp uses 1 to 16 devices"),
            ([str(ROOT / "README.md"), "--gpu", "8GiB"], 3, "README.md"),
            ([DENSE, "--gpu", "many"], 2, "'many'"),
            ([DENSE, "-c"], 2, "-c needs a value"),
            ([DENSE, "-c", "x"], 2, "expected a whole number"),
            ([DENSE, "--gpu", "24GiB", "-ctv", "q8_0", "-fa", "off"], 2, "quantized V cache"),
            ([DENSE, "--format", "poem"], 2, "--format"),
            (["--gpu", "24GiB"], 2, "name a model:"),
            ([DENSE, "--gpu", "8GiB", "--ttft", "0"], 2, "expected seconds, more than 0"),
            (["help", "poem"], 2, "no command 'poem': run, ollama,"),
            (["inspect"], 2, "one model"),
            (["sweep"], 2, "name a model:"),
            (["swep", "x"], 3, "swep: no such file; did you mean the command autolayers sweep?"),
            (["Plan"], 3, "did you mean autolayers MODEL?"),
            (["inspect", str(HEADERS)], 3, "a directory, not a model; it has afmoe-moe.gguf, "),
            ([str(ROOT / "docs")], 3, "no GGUF model in this directory or below it"),
            ([str(HEADERS), "-q"], 2, "-q is for one model"),
            ([str(ROOT / "README.md"), "--swap"], 3, "README.md"),
            (
                ["llama3.1"],
                3,
                "llama3.1: no such file; for an Ollama model write ollama:llama3.1, for a Hugging "
                "Face "
                "one hf:",
            ),
            (["mistral"], 3, "ollama:mistral, for a Hugging Face one hf:USER/REPO"),
            (["hf.co/me/my:Q4_K_M"], 3, "for a Hugging Face repository write hf:me/my:Q4_K_M"),
            (["me/my-GGUF"], 3, "for a Hugging Face repository write hf:me/my-GGUF"),
            (["d/my.gguf"], 3, "d/my.gguf: no such file\n"),
            (["~d/my"], 3, "~d/my: no such file\n"),
            (["me/my:Q4_K_M"], 3, "for a Hugging Face repository write hf:me/my:Q4_K_M\n"),
            (["llama3.1:8b"], 3, "for an Ollama model write ollama:llama3.1:8b\n"),
            ([DENSE.replace("llama-", "lama-")], 3, f"did you mean {DENSE}?\n"),
            ([DENSE.replace("llama", "Llama")], 3, f"did you mean {DENSE}?\n"),
            (["inspect", DENSE.removesuffix(".gguf")], 3, f"did you mean {DENSE}?\n"),
            (
                [str(ROOT / "fixtures/tiny/split-00004-of-00003.gguf")],
                3,
                "split-00004-of-00003.gguf: no such file\n",
            ),
            ([DENSE, "--gpu", "none"], 2, "--gpu none: -dev none plans for the CPU alone\n"),
            (
                [DENSE, "--gpu", "24GiB", "--margin", "1GiB,2GiB"],
                2,
                "--margin has 2 sizes for 1 device\n",
            ),
            ([DENSE, "--gpu", "gtx-1660-tie"], 2, "perhaps gtx-1660-ti"),
            (["sweep", DENSE, "-m", MOE], 2, "two models"),
            (["sweep", DENSE, "--contexts", "a"], 2, "--contexts"),
            ([DENSE, "--gpu", "24GiB", "--budget", "GPU9=1GiB"], 2, "no device GPU9"),
        ],
    )
    def test_bad_input_is_one_clear_line(self, words: list[str], code: int, message: str) -> None:
        found = run(*words)
        assert found.returncode == code, found.stderr
        assert found.stdout == ""
        assert found.stderr.startswith("autolayers: ") and found.stderr.count("\n") == 1
        assert message in found.stderr

    def test_no_words_at_all_print_a_short_help(self) -> None:
        found = run()
        assert (
            found.returncode == 2 and found.stdout == "" and found.stderr.startswith("autolayers: ")
        )

    def test_a_reader_that_leaves(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "autolayers", DENSE, "--gpu", "24GiB", "--json"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout and process.stderr
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        process.stderr.close()
        process.wait(300)


class TestCommands:
    @pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
    def test_help_says_how_it_is_used(self, words: list[str]) -> None:
        found = run(*words)
        assert found.returncode == 0 and "usage: autolayers MODEL" in found.stdout

    def test_the_version_is_that_of_the_package(self) -> None:
        import autolayers

        assert run("--version").stdout == f"autolayers {autolayers.__version__}\n"

    def test_inspect_shows_what_each_layer_takes(self) -> None:
        found = run("inspect", MOE, "-c", "8192", "--json")
        anatomy = json.loads(found.stdout)
        assert anatomy["facts"]["n_expert"] == 32 and anatomy["n_ctx"] == 8192
        layers = {layer["name"]: layer for layer in anatomy["layers"]}
        assert len(layers) == 26 and layers["3"]["experts"] > layers["3"]["attention"] > 0
        assert (
            layers["1"]["cache"] == 8192 * 2 * 2 * 8 * 64
        )  # every second layer sees all cells: K and V, 8 heads of 64, f16
        assert sum(layer["weights"] for layer in anatomy["layers"]) == anatomy["facts"]["size"]
        assert "experts" in run("inspect", MOE).stdout

    def test_the_flags_of_a_sweep_stand_below_each_row(self) -> None:
        """One after its row and another below it would be no table."""
        words = ("sweep", DENSE, "--gpus", "8GiB", "--types", "f16,q8_0", "--contexts")
        lines = run(*words, "4096,8192").stdout.splitlines()
        flags = [line for line in lines if "-ngl" in line]
        assert len(flags) == 4 and all(line.startswith("    -ngl") for line in flags)

    @pytest.mark.slow
    def test_a_sweep_has_a_point_for_each_combination(self) -> None:
        found = run(
            "sweep",
            DENSE,
            "--contexts",
            "4096,8k,4k",
            "--types",
            "f16,q8_0",
            "--gpus",
            "2GiB 24GiB",
            "--json",
        )
        points = json.loads(found.stdout)["points"]
        assert [(p["machine"], p["cache_type"], p["n_ctx"]) for p in points] == [
            (machine, kind, n)
            for machine in ("2GiB", "24GiB")
            for kind in ("f16", "q8_0")
            for n in (4096, 8192)
        ]
        assert all(p["n_gpu_layers"] == 17 for p in points if p["machine"] == "24GiB")

    def test_sweeps_machines_add_up_and_a_comma_is_one_machine(self) -> None:
        words = ("sweep", DENSE, "--contexts", "4096", "--types", "f16", "--json")
        found = run(*words, "--gpus", "2GiB", "--gpus", "rtx-3060 24GiB")
        assert [p["machine"] for p in json.loads(found.stdout)["points"]] == [
            "2GiB",
            "rtx-3060",
            "24GiB",
        ]
        assert "blanks separate" not in found.stderr
        found = run(*words, "--gpus", "8GiB,12GiB")
        assert [p["machine"] for p in json.loads(found.stdout)["points"]] == ["8GiB,12GiB"]
        assert (
            "is one machine with all of these; blanks separate machines: --gpus '8GiB 12GiB'"
            in found.stderr.replace("\n", " ")
        )

    def test_a_sweep_counts_what_is_loaded_with_the_model_and_says_what_a_plan_says_of_a_machine(
        self,
    ) -> None:
        drafts = ("-md", DENSE, "--spec-type", "draft-simple")
        words = ("-c", "4096", "-ngl", "17", *drafts, "--json")
        swept = run("sweep", DENSE, "--types", "f16", "--gpus", "24GB", *words)
        plan = run(DENSE, "--gpu", "24GiB", *words)
        (point,), row = json.loads(swept.stdout)["points"], json.loads(plan.stdout)["devices"][0]
        assert row["extra"] > 0 and point["devices"]["CUDA0"]["remaining"] == row["remaining"]
        said = run(
            "sweep", DENSE, "--types", "f16", "--gpus", "m2-8g", "--ram", "16GB", *words[:4]
        ).stderr
        assert "a machine with this GPU counts 8192.00 MiB" in " ".join(said.split())

    @pytest.mark.slow
    @pytest.mark.parametrize("columns", [60, 80, 120])
    def test_the_rows_of_a_sweep_fit_the_terminal_and_can_be_pasted(
        self, columns: int, eight: Callable[[str], str]
    ) -> None:
        model = eight("gpt-oss-20b-mxfp4")
        words = (
            "sweep",
            model,
            "--contexts",
            "8k,32k",
            "--types",
            "f16",
            "--gpus",
            "2500MiB 24GiB",
        )
        env = {"COLUMNS": str(columns), "NO_COLOR": "1"}
        text = run(*words, env=env).stdout
        flags = [line[line.index("-ngl") :] for line in text.splitlines() if "-ngl" in line]
        assert len(flags) == 4 and any("'" in words for words in flags)
        for said in flags if columns == 60 else ():  # the rows are the same in each width
            again = run(model, "--gpu", "24GiB", *shlex.split(said))
            assert again.returncode == 0, again.stderr
        assert all(len(line) <= columns for line in text.splitlines() if "-ngl" not in line)
        plot = run(*words, "--plot", env=env).stdout
        ends = [
            line.index("|") for line in plot.splitlines() if line.endswith("t/s") or "t/s " in line
        ]
        assert ends[0] == ends[1] < ends[2] == ends[3]  # one scale for both machines
        assert (
            all(len(line) <= columns for line in plot.splitlines())
            and " t/s" in plot
            and "GiB" in plot
        )

    def test_a_sweep_is_printed_as_csv(self, eight: Callable[[str], str]) -> None:
        model = eight("gpt-oss-20b-mxfp4")
        text = run(
            "sweep",
            model,
            "--contexts",
            "4096",
            "--types",
            "f16,q8_0",
            "--gpus",
            "2500MiB",
            "--csv",
        ).stdout
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["cache_type"] for row in rows] == ["f16", "q8_0"]
        plan = json.loads(run(model, "-c", "4096", "--gpu", "2500MiB", "--json").stdout)
        assert int(rows[0]["device_bytes"]) == plan["devices"][0]["used"]
        assert float(rows[0]["tokens_per_second"]) == plan["speed"]["generation_tokens_per_second"]
        assert shlex.split(rows[0]["flags"]) == plan["flags"]

    def test_a_sweep_prints_what_it_knows_and_an_interrupt_keeps_it(self) -> None:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "autolayers",
                "sweep",
                MOE,
                "--gpus",
                "24GiB",
                "--contexts",
                ",".join(str(n) for n in range(1024, 131072, 256)),
            ],
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        os.close(theirs)
        assert process.stdout
        known = [process.stdout.readline() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        progress = all_of(ours)
        process.stdout.close()
        os.close(ours)
        assert process.wait(300) == 130
        assert "gpt-oss" in known[0] and "context" in known[1] and known[2].split()[0] == "1024"
        assert (
            " of " in progress
            and progress.endswith("\r\x1b[K")
            and "Traceback" not in progress + rest
        )


class TestSeveralModels:
    def test_what_fits_together(self) -> None:
        found = json.loads(run("plan", DENSE, MOE, "--gpu", "24GiB", "--json").stdout)
        assert found["fits"] and [m["launch"]["n_gpu_layers"] for m in found["models"]] == [17, 25]
        used = sum(d["used"] + d["margin"] for m in found["models"] for d in m["devices"])
        assert found["left"]["CUDA0"] == 24 * 2**30 - used >= 0

    @pytest.mark.slow
    def test_what_does_not_shares_what_there_is(self, eight: Callable[[str], str]) -> None:
        found = run("plan", DENSE, eight("gpt-oss-20b-mxfp4"), "--gpu", "5GiB")
        assert found.returncode == 0
        lines = found.stdout.splitlines()
        assert (
            len(lines) == 2
            and lines[0].startswith(f"-m {shlex.quote(DENSE)} -ngl")
            and "-ncmoe" in lines[1]
        )

    @pytest.mark.parametrize(
        ("word", "code", "said"),
        [
            slow(f"{DENSE}@3", 0, ""),
            (f"{DENSE}@0", 2, "a model's weight is more than 0"),
            (f"{DENSE}@x", 3, "no such file"),
        ],
    )
    def test_weights_are_part_of_the_name(self, word: str, code: int, said: str) -> None:
        done = run("plan", word, MOE, "--gpu", "24GiB", "--json")
        assert done.returncode == code and said in done.stderr
        assert code or json.loads(done.stdout)["weights"] == [3, 1]

    def test_a_router_preset_says_the_same(self) -> None:
        import configparser

        text = run("plan", DENSE, DENSE, "--gpu", "24GiB", "--format", "preset").stdout
        preset = configparser.ConfigParser(interpolation=None)
        preset.read_string(text.partition("\n\n")[2])
        assert preset.sections() == ["llama-3.2-1b-q8_0", "llama-3.2-1b-q8_0-2"]
        assert preset["llama-3.2-1b-q8_0"]["n-gpu-layers"] == "17"

    def test_two_models_make_a_llama_swap_configuration(self) -> None:
        text = run("plan", DENSE, MOE, "--gpu", "24GiB", "--format", "llama-swap").stdout
        assert '"gpt-oss-20b-mxfp4":' in text and "--port ${PORT}" in text and "swap: false" in text

    def test_a_format_for_one_model_refuses_two(self) -> None:
        found = run("plan", DENSE, MOE, "--gpu", "24GiB", "--format", "systemd")
        assert found.returncode == 2 and "is for one model" in found.stderr


def test_the_hot_path_imports_nothing_heavy() -> None:
    code = (
        "import sys; from autolayers.cli import main; main([sys.argv[1], '-q', '--gpu', '24GiB']); "
        "print(sorted(set(sys.modules) & {'argparse', 'json', 'pathlib', 'typing', 'subprocess', "
        "'logging', 'numpy', "
        "'requests', 'psutil', 'pynvml', 'gguf', 'dataclasses', 'inspect', 'importlib.metadata'}))"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", code, DENSE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "17\n[]\n"


@pytest.mark.parametrize("form", ["flags", "text", "systemd"])
def test_a_token_is_never_printed(form: str) -> None:
    done = run(
        "fixtures/headers/llama-3.1-8b-q4_k_m.gguf",
        "--gpu",
        "24GiB",
        "-hft",
        "hush",
        "--port",
        "81",
        "--format",
        form,
    )
    assert (
        "hush" not in done.stdout + done.stderr
        and "HF_TOKEN" in done.stdout + done.stderr
        and "81" in done.stdout
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="terminals")
def test_a_terminal_is_told_what_takes_its_time() -> None:
    """And the line is gone before the answer, and before an error."""
    ours, theirs = os.openpty()
    for words, code in (
        ([DENSE, "--gpu", "24GiB"], 0),
        ([DENSE, DENSE, "--gpu", "24GiB"], 0),
        ([DENSE, "--gpu", "24GiB", "-dev", "CUDA9"], 2),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "autolayers", *words],
            stdout=subprocess.PIPE,
            stderr=theirs,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm"},
            check=False,
        )
        assert done.returncode == code and b"planning" not in done.stdout
        said = b""
        # a terminal may deliver it in parts
        while b"\x1b[K" not in said and select.select([ours], [], [], 10)[0]:
            said += os.read(ours, 4096)
        assert said.startswith(b"\rplanning\r\x1b[K")
        while select.select([ours], [], [], 0.1)[0]:  # the error's own line
            os.read(ours, 4096)
    os.close(ours)
    os.close(theirs)


def test_offline_holds_for_the_files_that_are_loaded_with_the_model_too(tmp_path: Path) -> None:
    """The draft model of `-hfd` is not asked for on the network; the hub named here would refuse
    the connection."""
    env = {
        "HF_HOME": str(tmp_path),
        "LLAMA_CACHE": str(tmp_path),
        "HF_ENDPOINT": "http://127.0.0.1:1",
    }
    r = run(DENSE, "--gpu", "24GiB", "-hfd", "u/r", "--offline", env=env)
    assert r.returncode == 3 and "the network is off (--offline)" in r.stderr, r.stderr


def test_a_package_that_is_missing_is_named() -> None:
    """autolayers.pyz has no psutil; most commands need none."""
    code = (
        "import sys; sys.modules['psutil'] = None; from autolayers.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )

    def without(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            env=environ(),
            capture_output=True,
            text=True,
            cwd=ROOT,
        )

    done = without("ps")
    assert done.returncode == 1
    assert done.stderr == "autolayers: the Python package psutil is missing: pip install psutil\n"
    assert without(str(HEADERS / "llama-3.2-1b-q8_0.gguf"), "--gpu", "8GiB", "-q").returncode == 0
