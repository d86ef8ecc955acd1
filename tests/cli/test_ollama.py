"""Users of Ollama would set numbers that Ollama does not use, or change a server by surprise.

`autolayers ollama ...` as a user runs it: a home of its own, a store on disk, a server on
loopback.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from fake_ollama import FakeOllama, make_store
from support import HEADERS, ROOT, command, few, few_rows, gpu, seldom, slow

from autolayers.devices import Device
from autolayers.model import read_model
from autolayers.ollama.modelfile import parse
from autolayers.units import GiB

LLAMA = HEADERS / "llama-3.1-8b-q4_k_m.gguf"
MOE = HEADERS / "llama-moe.gguf"  # tiny: 3 layers, 7 MiB
SMALL = ("--gpu", "8500KiB", "--margin", "0")  # too small for all of it


@pytest.fixture
def fake():
    with FakeOllama() as server:
        server.add("llama3.1:8b", LLAMA, {"temperature": 0.5})
        server.layers = 33
        yield server


@pytest.fixture
def run(tmp_path):
    """Runs the command with a home of its own and, without OLLAMA_HOST, no server."""

    def run(*words: str, input: bytes | None = None, **environ: str) -> subprocess.CompletedProcess:
        surroundings = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OLLAMA_HOST": "127.0.0.1:9",
            "OLLAMA_MODELS": str(tmp_path / "models"),
            **environ,
        }
        done = command("ollama", *words, input=input or b"", environ=surroundings, cwd=tmp_path)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    return run


def failure(done: subprocess.CompletedProcess, code: int) -> str:
    """The one clear line."""
    assert done.returncode == code, (done.stdout, done.stderr)
    lines = done.stderr.decode().splitlines()
    assert done.stdout == b"" and lines[-1].startswith("autolayers: ")
    return lines[-1]


def test_a_modelfile_is_changed_in_place(run, tmp_path):
    file = tmp_path / "Modelfile"
    before = (
        b'# mine\r\nFROM "'
        + str(LLAMA).encode()
        + b'"\r\nPARAMETER num_ctx  8192 \r\nSYSTEM """\r\nhi\r\n"""'
    )
    file.write_bytes(before)
    file.chmod(0o600)
    done = run("modelfile", "Modelfile", "--in-place", "--backup", "--gpu", "24GiB")
    assert done.returncode == 0, done.stderr
    quoted = b'"' + str(LLAMA).encode() + b'"\r\n'
    assert file.read_bytes() == before.replace(quoted, quoted + b"PARAMETER num_gpu 33\r\n")
    assert (tmp_path / "Modelfile.bak").read_bytes() == before
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"num_gpu 33 of 33, num_ctx 8192" in done.stdout


@pytest.mark.slow
def test_a_modelfile_goes_to_standard_output_or_to_a_file(run, tmp_path):
    source = f"FROM {LLAMA}\n".encode()
    (tmp_path / "Modelfile").write_bytes(source)
    wanted = source + b"PARAMETER num_gpu 33\nPARAMETER num_ctx 4096\n"
    words = ("--gpu", "12GiB", "-c", "4096")
    assert run("modelfile", "Modelfile", *words).stdout == wanted
    assert run("modelfile", "-", *words, input=source).stdout == wanted
    assert run("modelfile", "Modelfile", *words, "-o", "new").returncode == 0
    assert (tmp_path / "new").read_bytes() == wanted and (
        tmp_path / "Modelfile"
    ).read_bytes() == source


def test_utf_16_stays_and_a_num_gpu_too_much_becomes_auto(run, tmp_path):
    text = f"FROM {MOE}\r\nPARAMETER num_gpu 12\r\n"
    (tmp_path / "Modelfile").write_bytes(b"\xff\xfe" + text.encode("utf-16-le"))
    done = run("modelfile", "Modelfile", *SMALL, "-c", "512")
    changed = text.replace("num_gpu 12", "num_gpu -1").replace(
        "gguf\r\n", "gguf\r\nPARAMETER num_ctx 256\r\n"
    )
    assert done.stdout == b"\xff\xfe" + changed.encode("utf-16-le")
    assert b"mixture of experts" in done.stderr and b"LLAMA_ARG_N_CPU_MOE=1" in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"FROM m\nPARAMETER num_gpu 3 # all\n", "Modelfile:2: invalid int value [3 # all]"),
        (b"FROM m\nPARAMETER numgpu 3\n", "Modelfile:2: unknown parameter 'numgpu'"),
        (b"FROM m\nFOO bar\n", "Modelfile:2: command must be one of"),
        (b"PARAMETER num_gpu 3\n", "no FROM line"),
        (b'FROM m\nSYSTEM "open\n', "unexpected EOF"),
    ],
)
def test_what_ollama_would_refuse_is_refused(run, tmp_path, content, words):
    (tmp_path / "Modelfile").write_bytes(content)
    assert words in failure(run("modelfile", "Modelfile", "-i", "--gpu", "24GiB"), 1)
    assert (tmp_path / "Modelfile").read_bytes() == content


def test_a_from_that_cannot_be_resolved_here(run, tmp_path):
    (tmp_path / "Modelfile").write_bytes(b"FROM somewhere/else:7b\nPARAMETER stop x\n")
    assert "--model PATH" in failure(run("modelfile", "Modelfile", "--gpu", "24GiB"), 3)
    done = run("modelfile", "Modelfile", "--gpu", "24GiB", "-c", "8192", "--model", str(LLAMA))
    assert (
        done.stdout
        == b"FROM somewhere/else:7b\nPARAMETER num_gpu 33\nPARAMETER num_ctx 8192\nPARAMETER stop "
        b"x\n"
    )


def test_from_may_name_a_directory_relative_to_the_modelfile(run, tmp_path):
    (tmp_path / "deep/weights").mkdir(parents=True)
    (tmp_path / "deep/weights/model.gguf").symlink_to(LLAMA)
    (tmp_path / "deep/Modelfile").write_bytes(b"FROM ./weights\n")
    assert b"PARAMETER num_gpu 33" in run("modelfile", "deep/Modelfile", "--gpu", "24GiB").stdout
    (tmp_path / "deep/weights/model-00001-of-00002.safetensors").touch()
    assert "--model PATH" in failure(run("modelfile", "deep/Modelfile", "--gpu", "24GiB"), 3)
    named = run("modelfile", "deep/Modelfile", "--gpu", "24GiB", "--model", str(LLAMA))
    assert b"PARAMETER num_gpu 33" in named.stdout


def test_a_gguf_file_gets_a_new_modelfile(run, tmp_path):
    (tmp_path / "my model.gguf").symlink_to(LLAMA)
    done = run("modelfile", "my model.gguf", "--gpu", "8GiB", "--ctx", "max", "-o", "Modelfile")
    assert done.returncode == 0, done.stderr
    made = parse((tmp_path / "Modelfile").read_bytes())
    assert made.model == str(tmp_path / "my model.gguf")
    parameters = made.parameters()
    assert (
        parameters["num_gpu"] == 33
        and parameters["num_batch"] == 512
        and 16384 < parameters["num_ctx"] < 40000
    )
    assert b"# CUDA0: weights 4403.49 MiB" in made.data


def test_a_name_gets_a_new_modelfile(run, tmp_path):
    make_store(
        tmp_path / "models", "registry.ollama.ai/library/llama3.1/8b", LLAMA, {"num_ctx": 2048}
    )
    assert "; there is llama3.1:8b" in failure(run("modelfile", "llama3.1", "--gpu", "24GiB"), 3)
    made = parse(run("modelfile", "llama3.1:8b", "--gpu", "24GiB").stdout)
    assert made.model == "llama3.1:8b" and made.parameters() == {"num_gpu": 33, "num_ctx": 2048}


def test_a_killed_command_leaves_the_old_file_or_the_new_one(run, tmp_path):
    file = tmp_path / "Modelfile"
    old = f"FROM {LLAMA}\n".encode()
    new = run("modelfile", "-", "--gpu", "24GiB", input=old).stdout
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OLLAMA_HOST": "127.0.0.1:9"}
    for delay in (0.1, 0.3, 0.5):
        file.write_bytes(old)
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "autolayers",
                "ollama",
                "modelfile",
                "Modelfile",
                "-i",
                "--gpu",
                "24GiB",
            ],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert file.read_bytes() in (old, new)


@seldom
def test_plan_from_the_store_and_from_the_server_agree(run, fake, tmp_path):
    words = ("plan", "llama3.1:8b", "--gpu", "5GiB", "-c", "8192", "--json")
    planned = json.loads(run(*words, **fake.environ).stdout)
    make_store(tmp_path / "models", "registry.ollama.ai/library/llama3.1/8b", LLAMA)
    there = json.loads(run(*words).stdout)
    assert there["num_gpu"] == planned["num_gpu"] and 0 < there["num_gpu"] < 33
    for key in ("devices", "host", "launch", "fits"):
        assert there["plan"][key] == planned["plan"][key]
    assert any("planned from the description of the server" in note for note in planned["warnings"])


def test_a_projector_that_only_the_server_can_read_is_set_aside(run, fake):
    fake.add("seeing", LLAMA, extra_size=1 << 30, projector=True)
    plan = json.loads(
        run("plan", "seeing", "--gpu", "12GiB", "-c", "8192", "--json", **fake.environ).stdout
    )
    assert plan["plan"]["devices"][0]["free"] == (12 << 30) - (1 << 30)
    assert any("1073741824 bytes are reserved" in warning for warning in plan["warnings"])


def test_parameters_of_the_server_s_model_count(run, fake):
    fake.add("long", LLAMA, {"num_ctx": 16384, "num_batch": 256})
    plan = json.loads(run("plan", "long", "--gpu", "24GiB", "--json", **fake.environ).stdout)
    assert plan["parameters"] == {"num_gpu": 33, "num_ctx": 16384, "num_batch": 256}


def test_plan_prints_a_number_a_text_or_what_the_server_needs(run):
    assert run("plan", str(LLAMA), "--gpu", "24GiB", "-q").stdout == b"33\n"
    assert run("plan", str(MOE), *SMALL, "-q").stdout == b"-1\n"  # Ollama's word for automatic
    text = run("plan", str(MOE), *SMALL).stdout.decode()
    assert "num_gpu left to Ollama" in text and "LLAMA_ARG_N_GPU_LAYERS=" in text
    assert run(
        "plan", str(LLAMA), "--gpu", "24GiB", "-q", "--budget", "CUDA0=4GiB", "-c", "4096"
    ).stdout not in (
        b"33\n",
        b"",
    )


def test_the_server_s_settings_are_heeded(run):
    plan = json.loads(
        run(
            "plan",
            str(LLAMA),
            "--gpu",
            "24GiB",
            "--json",
            OLLAMA_NUM_PARALLEL="2",
            OLLAMA_CONTEXT_LENGTH="8192",
            OLLAMA_KV_CACHE_TYPE="q8_0",
            OLLAMA_FLASH_ATTENTION="1",
        ).stdout
    )
    launch = plan["plan"]["launch"]
    assert (launch["n_ctx"], launch["n_seq_max"], launch["cache_type_k"], launch["n_ubatch"]) == (
        16384,
        2,
        "q8_0",
        1024,
    )
    assert plan["parallel"] == 2 and plan["num_ctx"] == 8192


def test_what_does_not_fit_is_not_written(run, tmp_path):
    written = f"FROM {HEADERS / 'llama-3.2-1b-q8_0.gguf'}\n".encode()
    (tmp_path / "Modelfile").write_bytes(written)
    assert "nothing was written" in failure(
        run("modelfile", "Modelfile", "-i", "--gpu", "1GiB", "--ram", "1GiB"), 5
    )
    assert (tmp_path / "Modelfile").read_bytes() == written


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (("plan", "nope"), 3, "no model nope:latest in"),
        (("plan", "./nope"), 3, "./nope: no such file"),
        (("plan", "hf:me/it"), 3, "hf.co/USER/REPO:QUANT"),
        (("plan", "a-model:120b-cloud"), 3, "cloud"),
        (("modelfile", "nope.gguf", "--gpu", "8GiB"), 3, "nope.gguf: no such file"),
        (("modelfile", "."), 3, "Is a directory"),
        (("modelfile", "nope", "-i", "-o", "x"), 2, "exclude each other"),
        (("modelfile", "nope", "--frob"), 2, "--frob is no flag of autolayers ollama modelfile"),
        (("modelfile",), 2, "required"),
        (("plan", "m", "-c", "lots"), 2, "expected a number of tokens such as 8192 or 16k, or max"),
        (("create", "m"), 2, "--as"),
        (("dance",), 2, "autolayers ollama has no command 'dance': modelfile, plan"),
        (("verify", "m"), 1, "no Ollama server at http://127.0.0.1:9"),
        (("create", "m", "--as", "n"), 1, "no Ollama server at http://127.0.0.1:9"),
    ],
)
def test_mistakes_are_one_clear_line(run, words, code, line):
    assert line in failure(run(*words), code)


def test_create_shares_the_weights_and_never_overwrites(run, fake):
    words = ("create", "llama3.1:8b", "--as", "mine", "--gpu", "24GiB", "-c", "8192")
    done = run(*words, **fake.environ)
    assert done.returncode == 0 and done.stdout == b"mine:latest: num_gpu 33, num_ctx 8192\n", (
        done.stderr
    )
    assert (
        "/api/create",
        {
            "model": "mine:latest",
            "from": "llama3.1:8b",
            "parameters": {"num_gpu": 33, "num_ctx": 8192},
            "stream": False,
        },
    ) in fake.requests
    assert fake.models["mine:latest"]["parameters"] == {
        "temperature": 0.5,
        "num_gpu": 33,
        "num_ctx": 8192,
    }
    assert "--force" in failure(run(*words, **fake.environ), 2)
    assert run(*words, "--force", **fake.environ).returncode == 0


def test_create_never_pulls(run, fake):
    assert "ollama pull" in failure(
        run("create", "absent", "--as", "mine", "--gpu", "24GiB", **fake.environ), 3
    )
    assert not [path for path, _ in fake.requests if path == "/api/create"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    few_rows(
        2,
        [
            ("500 no space left on device", "no space left on device"),
            ("empty", "answered nothing"),
            ("stream max retries exceeded", "max retries exceeded"),
        ],
    ),
)
def test_a_server_that_fails_in_between(run, fake, fault, words):
    fake.faults["/api/create"] = fault
    assert words in failure(
        run("create", "llama3.1:8b", "--as", "mine", "--gpu", "24GiB", **fake.environ), 1
    )


def test_a_list_without_models_says_where_it_looked(run, fake, tmp_path):
    done = run("list")
    assert (done.returncode, done.stdout) == (0, b"") and str(
        tmp_path / "models"
    ) in done.stderr.decode()
    fake.models.clear()
    done = run("list", "--json", **fake.environ)
    assert (done.returncode, done.stdout) == (0, b"[]\n") and b"has no models" in done.stderr


def test_a_forgotten_tag_and_a_stopped_download_are_named(run, fake, tmp_path):
    """A server that runs does not take the hint away."""
    assert "has no model llama3.1: model 'llama3.1' not found; there is llama3.1:8b" in failure(
        run("plan", "llama3.1", "--gpu", "8GiB", **fake.environ), 3
    )
    make_store(tmp_path / "models", "registry.ollama.ai/library/partial/latest", LLAMA)
    blob = next(path for path in (tmp_path / "models/blobs").iterdir() if path.is_symlink())
    blob.rename(f"{blob}-partial")
    for environ in ({}, fake.environ):
        assert "`ollama pull partial:latest` resumes it" in failure(
            run("plan", "partial", "--gpu", "8GiB", **environ), 3
        )


def test_models_that_run_elsewhere_are_not_planned(run, fake, tmp_path):
    line = "far:latest runs at https://ollama.com: there is no file to plan for"
    manifest = make_store(tmp_path / "models", "registry.ollama.ai/library/far/latest", LLAMA)
    config = tmp_path / "models/blobs" / f"sha256-{'1' * 64}"
    config.write_text('{"remote_host": "https://ollama.com"}')
    manifest.write_text(json.dumps({"config": {"digest": f"sha256:{'1' * 64}"}, "layers": []}))
    assert line in failure(run("plan", "far", "--gpu", "8GiB"), 3)
    fake.add("cloudy", LLAMA)
    fake.models["cloudy:latest"]["remote"] = "https://ollama.com"
    assert "runs at https://ollama.com" in failure(
        run("plan", "cloudy", "--gpu", "8GiB", **fake.environ), 3
    )


def test_the_token_of_a_proxy_is_sent(run, fake):
    assert (
        b"llama3.1:8b"
        in run("list", "--gpu", "8GiB", AUTOLAYERS_OLLAMA_TOKEN="secret", **fake.environ).stdout
    )
    assert {headers.get("Authorization") for headers in fake.headers} == {"Bearer secret"}
    fake.faults["/api/show"] = "401 no"
    assert "AUTOLAYERS_OLLAMA_TOKEN is sent" in failure(
        run("plan", "llama3.1:8b", "--gpu", "8GiB", **fake.environ), 1
    )
    seen = len(fake.requests)
    far = {"OLLAMA_HOST": "http://far.example:80", "http_proxy": f"http://{fake.host}"}
    assert "use https" in failure(
        run("list", "--gpu", "8GiB", AUTOLAYERS_OLLAMA_TOKEN="secret", **far), 1
    )
    assert len(fake.requests) == seen


@pytest.mark.slow
def test_ctx_max_is_the_largest_context_of_every_model(run, fake):
    fake.add("gemma", GEMMA)
    answers = json.loads(
        run("list", "--ctx", "max", "--gpu", "8GiB", "--json", **fake.environ).stdout
    )
    assert [answer["model"] for answer in answers] == ["llama3.1:8b", "gemma:latest"]
    for answer in answers:
        assert answer["num_gpu"] == answer["n_layers_all"] and answer["num_ctx"] > 8192
        one = json.loads(
            run(
                "plan", answer["model"], "--ctx", "max", "--gpu", "8GiB", "--json", **fake.environ
            ).stdout
        )
        assert one["parameters"] == answer["parameters"]


def test_settings_that_no_plan_depends_on_are_not_compared(run, serving):
    serving.settings = {
        "OLLAMA_HOST": f"http://{serving.host}",
        "OLLAMA_MODELS": "/elsewhere",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
    }
    serving.say_started()
    done = run(
        "plan", "gemma", "-q", OLLAMA_KV_CACHE_TYPE="f16", OLLAMA_MODELS="/here", **serving.environ
    )
    assert b"OLLAMA_KV_CACHE_TYPE is f16 here" in done.stderr
    assert b"OLLAMA_HOST is" not in done.stderr and b"OLLAMA_MODELS is" not in done.stderr


def test_an_empty_answer_of_show_is_an_error(run, fake):
    fake.faults["/api/show"] = "empty"
    assert "Inf or NaN" in failure(run("plan", "llama3.1:8b", "--gpu", "24GiB", **fake.environ), 1)


def test_verify_loads_what_was_planned_and_compares(run, fake, tmp_path):
    planned = json.loads(
        run("plan", "llama3.1:8b", "--gpu", "24GiB", "-c", "8192", "--json", **fake.environ).stdout
    )
    use = planned["plan"]["devices"][0]
    size = use["model"] + use["context"] + use["compute"]
    fake.vram = (size, size)
    (tmp_path / ".ollama/logs").mkdir(parents=True)
    fake.log = tmp_path / ".ollama/logs/server.log"
    fake.log.write_text("offloaded 1/99 layers to GPU\n")
    done = run("verify", "llama3.1:8b", "--gpu", "24GiB", "-c", "8192", **fake.environ)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert (
        "33 of 33 layers on the GPU" in text and "fully on the GPU" in text and "as planned" in text
    )
    calls = [body for path, body in fake.requests if path == "/api/generate"]
    assert calls[0]["keep_alive"] == 0 and calls[1]["options"] == {
        "num_gpu": 33,
        "num_ctx": 8192,
        "num_batch": 1024,
    }


def test_verify_says_what_differs(run, fake):
    fake.vram = (6 << 30, 3 << 30)
    done = run("verify", "llama3.1:8b", "--gpu", "24GiB", "-c", "8192", **fake.environ)
    text = done.stdout.decode()
    assert "partly on the GPU: 3072.00 MiB of 6144.00 MiB" in text and "less than planned" in text
    assert "the plan has all layers on the GPU" in text
    fake.vram = (0, 0)
    assert (
        b"runs on the CPU" in run("verify", "llama3.1:8b", "--gpu", "24GiB", **fake.environ).stdout
    )


def test_verify_steps_down_and_stores_what_worked(run, fake):
    fake.fits_layers = 29
    done = run(
        "verify", "llama3.1:8b", "--gpu", "24GiB", "-c", "8192", "--write", "--json", **fake.environ
    )
    assert done.returncode == 0, done.stderr
    tried = [
        body["options"]["num_gpu"]
        for path, body in fake.requests
        if path == "/api/generate" and "options" in body
    ]
    # down by 1, 2, 4, then up again by halves: the most that loads
    assert tried == [33, 32, 30, 26, 28, 29]
    verified = json.loads(done.stdout)["verified"]
    assert (
        verified["parameters"] == {"num_gpu": 29, "num_ctx": 8192}
        and len(verified["failures"]) == 3
    )
    assert fake.models["llama3.1:8b"]["parameters"] == {
        "temperature": 0.5,
        "num_gpu": 29,
        "num_ctx": 8192,
    }


@pytest.mark.parametrize("most", few(3, [0, 1, 2, slow(16), 17, 31, 32]))
def test_verify_finds_the_most_that_loads(run, fake, most):
    """From 33 the way down passes 32, 30, 26, 18, 2 and 0; what is left loaded is the answer."""
    fake.fits_layers = most
    done = run("verify", "llama3.1:8b", "--gpu", "24GiB", "-c", "4096", "--json", **fake.environ)
    tried = [body["options"]["num_gpu"] for path, body in fake.requests if "options" in body]
    assert json.loads(done.stdout)["verified"]["parameters"]["num_gpu"] == most
    assert tried[-1] == most and len(tried) <= 12


# --- a server whose llama-server is started as Ollama starts it

GEMMA = HEADERS / "gemma-3-4b-q8_0.gguf"  # two KV caches


@pytest.fixture
def serving(fake, tmp_path):
    """A server on two GPUs with a log where it is looked for."""
    fake.add("gemma", GEMMA)
    fake.gpus = [gpu(12), gpu(8, "CUDA1")]
    fake.log = tmp_path / ".ollama/logs/server.log"
    fake.log.parent.mkdir(parents=True)
    fake.log.write_text("")
    return fake


@pytest.mark.slow
def test_verify_counts_both_caches(run, serving):
    serving.gpus = serving.gpus[:1]
    text = run(
        "verify", "gemma", "--gpu", "12GiB", "-c", "32768", **serving.environ
    ).stdout.decode()
    assert "fully on the GPU" in text and ": as planned" in text and "differs" not in text


@pytest.mark.parametrize(
    ("theirs", "word"),
    [
        ({"OLLAMA_NUM_PARALLEL": "4"}, "-np 4, the plan has 1: OLLAMA_NUM_PARALLEL"),
        slow({"OLLAMA_KV_CACHE_TYPE": "q8_0"}, "-ctk q8_0, the plan has f16: OLLAMA_KV_CACHE_TYPE"),
        slow({"OLLAMA_FLASH_ATTENTION": "1"}, "-fa on, the plan has auto: OLLAMA_FLASH_ATTENTION"),
    ],
)
def test_verify_says_which_setting_differs(run, serving, theirs, word):
    serving.gpus, serving.settings = serving.gpus[:1], theirs
    text = run("verify", "gemma", "--gpu", "12GiB", "-c", "8192", **serving.environ).stdout.decode()
    assert word in text


@pytest.mark.slow
def test_the_server_s_log_says_its_gpus_and_settings(run, serving):
    """No GPU is found here; what the server saw and was set to is what is planned for, unless it is
    said otherwise."""
    serving.settings = {
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_CONTEXT_LENGTH": "8192",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
    }
    serving.log.write_text("")
    serving.say_started()
    done = run("plan", "gemma", "--json", **serving.environ)
    plan = json.loads(done.stdout)
    assert (plan["parallel"], plan["num_ctx"], plan["plan"]["launch"]["cache_type_k"]) == (
        2,
        8192,
        "q8_0",
    )
    assert [d["name"] for d in plan["plan"]["devices"]] == ["CUDA0"] and plan["num_gpu"] == 35
    assert 11.9 * GiB < plan["plan"]["devices"][0]["free"] < 12 * GiB
    assert b"GPUs from the server's log" in done.stderr
    plan = json.loads(
        run("plan", "gemma", "--json", OLLAMA_NUM_PARALLEL="3", **serving.environ).stdout
    )
    assert plan["parallel"] == 3
    assert (
        json.loads(run("plan", "gemma", "--gpu", "24GiB", "--json", **serving.environ).stdout)[
            "parallel"
        ]
        == 1
    )


@seldom
def test_free_memory_of_the_log_is_not_counted_twice(run, serving):
    """Others hold 3 of 8 GiB. The log's figure is from before anything was loaded, so that what is
    loaded now does not come on top; the last load's is newer."""
    words = ("plan", "llama3.1:8b", "-c", "16384", "--json")
    serving.gpus = [Device("CUDA0", 8 * GiB, 5 * GiB)]
    serving.say_started()
    alone = json.loads(run(*words, **serving.environ).stdout)
    serving.loaded["x"] = {"name": "x", "size": 5 << 29, "size_vram": 5 << 29}
    done = run(*words, **serving.environ)
    plan = json.loads(done.stdout)
    assert 0 < alone["num_gpu"] < 33 and plan["num_gpu"] == alone["num_gpu"]
    assert plan["plan"]["devices"][0]["free"] == alone["plan"]["devices"][0]["free"]
    assert (
        b"x is loaded" not in done.stderr and b"free memory of 2026-08-21T10:00:01Z" in done.stderr
    )
    serving.gpus = [Device("CUDA0", 8 * GiB, 6 * GiB)]
    serving.start(read_model(GEMMA), {"num_gpu": 0, "num_ctx": 512})
    done = run(*words, **serving.environ)
    assert json.loads(done.stdout)["plan"]["devices"][0]["free"] == 6 * GiB
    assert b"free memory of 2026-08-21T10:00:02Z" in done.stderr


def test_gpus_of_the_log_that_a_load_does_not_see_keep_their_figure(run, serving):
    """Ollama hides all but the best GPU: the second one is CUDA0 to llama-server."""
    serving.say_started()
    serving.say(
        'time=2026-08-21T11:00:00Z msg="starting llama-server" '
        'cmd="/usr/lib/ollama/llama-server --model m"'
    )
    serving.say("x: using device CUDA0 (a (GPU)) (0000:01:00.0) - 3000 MiB free")
    serving.loaded["x"] = {"name": "x", "size": 5 << 29, "size_vram": 5 << 29}
    done = run("plan", "llama3.1:8b", "-c", "4096", "--json", **serving.environ)
    assert (
        b"CUDA1 (free memory of 2026-08-21T11:00:00Z)" in done.stderr
        and b"counted as used" not in done.stderr
    )
    assert [d["name"] for d in json.loads(done.stdout)["plan"]["devices"]] == ["CUDA0"]


@pytest.mark.slow
def test_no_gpu_is_no_reason_to_turn_the_gpu_off(run, fake, tmp_path):
    done = run("create", "llama3.1:8b", "--as", "mine", **fake.environ)
    assert done.stdout == b"mine:latest: num_ctx 4096\n" and b"--gpu SIZE" in done.stderr
    assert "num_gpu" not in fake.models["mine:latest"]["parameters"]
    (tmp_path / "Modelfile").write_bytes(b"FROM llama3.1:8b\nPARAMETER num_gpu 20\n")
    assert b"PARAMETER num_gpu 20\n" in run("modelfile", "Modelfile", **fake.environ).stdout
    assert run("plan", "llama3.1:8b", "-q", **fake.environ).stdout == b"-1\n"


@pytest.mark.slow
def test_a_num_gpu_of_the_base_is_overridden(run, fake, tmp_path):
    """FROM NAME takes over the parameters of NAME, so that one left out would be the base's."""
    fake.add("moe-auto", MOE, {"num_gpu": 2})
    (tmp_path / "Modelfile").write_bytes(b"FROM moe-auto\n")
    for what in ("Modelfile", "moe-auto"):
        made = parse(run("modelfile", what, *SMALL, "-c", "512", **fake.environ).stdout)
        assert made.parameters()["num_gpu"] == -1
    run("create", "moe-auto", "--as", "mine", *SMALL, "-c", "512", **fake.environ)
    assert fake.models["mine:latest"]["parameters"]["num_gpu"] == -1


def test_auto_gives_a_model_back(run, fake, tmp_path):
    fake.add("pinned", LLAMA, {"num_gpu": 12, "num_ctx": 8192})
    done = run("create", "pinned", "--auto", **fake.environ)
    assert done.returncode == 0 and fake.models["pinned:latest"]["parameters"] == {
        "num_gpu": -1,
        "num_ctx": 8192,
    }
    (tmp_path / "Modelfile").write_bytes(
        b"FROM pinned\nPARAMETER num_gpu 12\nPARAMETER num_ctx 9\n"
    )
    assert run("modelfile", "Modelfile", "--auto", "-i", **fake.environ).returncode == 0
    assert (
        tmp_path / "Modelfile"
    ).read_bytes() == b"FROM pinned\nPARAMETER num_gpu -1\nPARAMETER num_ctx 9\n"
    assert "Modelfile" in failure(run("modelfile", "pinned", "--auto", **fake.environ), 2)


@pytest.mark.slow
def test_list_has_a_line_for_every_model(run, fake, tmp_path):
    fake.add("gemma", GEMMA)
    lines = run("list", "--gpu", "24GiB", "-c", "8192", **fake.environ).stdout.decode().splitlines()
    assert lines == [
        "llama3.1:8b: num_gpu 33 of 33, num_ctx 8192, num_batch 1024 (Ollama's own choice)",
        "gemma:latest: num_gpu 35 of 35, num_ctx 8192, num_batch 1024 (Ollama's own choice)",
    ]
    fake.faults["/api/show"] = "500 no"
    said = failure(run("list", "--gpu", "24GiB", **fake.environ), 1)
    assert "gemma:latest: " in said
    make_store(tmp_path / "models", "registry.ollama.ai/library/llama3.1/8b", LLAMA)
    make_store(tmp_path / "models", "hf.co/user/name/Q8_0", GEMMA)
    answers = json.loads(run("list", "--gpu", "24GiB", "-c", "8192", "--json").stdout)
    assert sorted(answer["model"] for answer in answers) == ["hf.co/user/name:Q8_0", "llama3.1:8b"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("FROM ./nofile.gguf\n", "Modelfile:1: FROM ./nofile.gguf: no such file"),
        ("FROM /x/y.gguf # mine\n", "comments need their own line"),
        (f"FROM {LLAMA}\nDRAFT {LLAMA}\n", "Modelfile:2: DRAFT"),
    ],
)
def test_files_that_are_not_what_they_should_be(run, tmp_path, content, line):
    (tmp_path / "Modelfile").write_text(content)
    assert line in failure(run("modelfile", "Modelfile", "--gpu", "8GiB"), 3)


def test_a_model_of_another_machine_needs_that_machine_s_gpus(run, fake, tmp_path):
    """Whatever asks for it; the far server is behind a proxy here."""
    (tmp_path / "Modelfile").write_bytes(b"FROM llama3.1:8b\n")
    far = {"OLLAMA_HOST": "http://far.example:80", "http_proxy": f"http://{fake.host}"}
    for words in (
        ("modelfile", "llama3.1:8b"),
        ("modelfile", "Modelfile"),
        ("plan", "llama3.1:8b"),
        ("list",),
    ):
        done = run(*words, **far)
        assert (
            done.stdout == b""
            and b"is another machine: describe its GPUs with --gpu SIZE" in done.stderr
        )
    assert (
        b"PARAMETER num_gpu 33" in run("modelfile", "llama3.1:8b", "--gpu", "24GiB", **far).stdout
    )


def test_verify_gives_up_where_nothing_fits(run, fake):
    fake.fits_layers = -5
    done = run("verify", "llama3.1:8b", "--gpu", "24GiB", "--write", **fake.environ)
    assert done.returncode == 1 and b"runs out of memory even with num_gpu 0" in done.stdout
    assert fake.models["llama3.1:8b"]["parameters"] == {"temperature": 0.5}


def test_verify_stops_at_what_is_no_lack_of_memory(run, fake):
    fake.faults["/api/generate"] = '500 option \\"num_gpu\\" must be of type integer'
    assert "must be of type integer" in failure(
        run("verify", "llama3.1:8b", "--gpu", "24GiB", **fake.environ), 1
    )


def test_a_far_server_needs_its_gpus_named(run):
    done = run("plan", "llama3.1:8b", OLLAMA_HOST="http://192.0.2.1:11434/", OLLAMA_TEST="")
    assert done.returncode in (1, 2) and b"192.0.2.1" in done.stderr


def test_the_documentation_names_no_flag_that_is_not_there(run):
    import re

    text = (ROOT / "docs/ollama.md").read_text()
    known = b" ".join(
        run(action, "--help").stdout for action in ("modelfile", "plan", "create", "verify")
    ).decode()
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - {
        "--fit",
        "--modelfile",
    }  # llama.cpp's and Ollama's own
    assert flags and not [flag for flag in flags if flag not in known]


@seldom
def test_memory_that_ollama_holds_itself_counts_as_free(fake, monkeypatch, capsys):
    from autolayers import devices, request
    from autolayers.cli.ollama import main

    card = devices.Device("CUDA0", total=8 << 30, free=3 << 30)
    here = devices.Inventory((card,), devices.Host(64 << 30, 64 << 30, "given"))
    monkeypatch.setattr(request, "discover", lambda *asked: here)
    monkeypatch.setenv("OLLAMA_HOST", fake.host)
    words = ["plan", str(LLAMA), "-c", "4096", "--json"]
    main(words)
    before = json.loads(capsys.readouterr().out)
    fake.loaded["x"] = {"name": "x", "size": 5 << 30, "size_vram": 4 << 30}
    main(words)
    said = capsys.readouterr()
    after = json.loads(said.out)
    assert (
        after["plan"]["devices"][0]["free"] == 7 << 30
        and before["plan"]["devices"][0]["free"] == 3 << 30
    )
    assert before["num_gpu"] < after["num_gpu"] == 33 and "x is loaded in Ollama" in said.err
    for impossible in (-8 << 30, 9 << 60, "7", None):
        fake.loaded["x"]["size_vram"] = impossible
        main(words)
        assert json.loads(capsys.readouterr().out)["num_gpu"] == before["num_gpu"]


@pytest.mark.slow
def test_memory_that_a_far_server_holds_is_not_this_machine_s(fake, monkeypatch, capsys, tmp_path):
    from autolayers import devices, request
    from autolayers.cli.ollama import main

    card = devices.Device("CUDA0", total=24 << 30, free=4 << 30)
    here = devices.Inventory((card,), devices.Host(64 << 30, 64 << 30, "given"))
    monkeypatch.setattr(request, "discover", lambda *asked: here)
    monkeypatch.setenv("OLLAMA_HOST", "http://far.example:80")
    monkeypatch.setenv("http_proxy", f"http://{fake.host}")
    fake.loaded["x"] = {"name": "x", "size": 5 << 30, "size_vram": 4 << 30}
    main(["plan", str(LLAMA), "-c", "4096", "--json"])
    said = capsys.readouterr()
    assert (
        json.loads(said.out)["plan"]["devices"][0]["free"] == 4 << 30
        and "is loaded" not in said.err
    )
    assert not [path for path, _ in fake.requests if path == "/api/ps"]


# --- models that stay


@pytest.mark.slow
def test_a_model_beside_one_that_stays_has_what_that_leaves(run, fake) -> None:
    """Ollama unloads the one that was idle longest, whatever should stay, where its own guess of
    the next is more than 80 % of what is free."""
    fake.add("qwen:7b", HEADERS / "qwen2.5-7b-q4_k_m.gguf", {})

    def asked(gpu: str, *words: str) -> tuple[dict[str, object], str, int]:
        done = run(
            *("plan", "qwen:7b", "--gpu", gpu, "--ram", "32GiB", "--num-ctx", "4096", "--json"),
            *words,
            **fake.environ,
        )
        return json.loads(done.stdout), done.stderr.decode(), done.returncode

    alone, _, _ = asked("8GiB")
    beside, _, code = asked("8GiB", "--stay", "llama3.1:8b")
    left = [answer["plan"]["devices"][0]["free"] for answer in (alone, beside)]
    assert 5 * GiB < left[0] - left[1] < 7 * GiB and code == 0
    assert beside["num_gpu"] is not None and beside["num_gpu"] < 20
    body = json.dumps({"model": "llama3.1:8b", "keep_alive": -1})
    asks = f"curl http://{fake.host}/api/generate -d '{body}'"
    assert f"llama3.1:8b stays: {asks}" in beside["warnings"]
    assert not any("unloads one of those" in line for line in beside["warnings"])
    # all of it fits, by its real size, and Ollama's own guess does not
    tight, _, _ = asked("11100MiB", "--stay", "llama3.1:8b")
    roomy, _, _ = asked("24GiB", "--stay", "llama3.1:8b")
    assert [
        any("Ollama unloads one of those first all the same" in line for line in found["warnings"])
        for found in (tight, roomy)
    ] == [True, False]
    assert not roomy["server"]
    many, _, _ = asked("24GiB", "--stay", "llama3.1:8b,llama3.1:8b,llama3.1:8b")
    assert "OLLAMA_MAX_LOADED_MODELS=4" in many["server"]
