"""Visitors of the page would see other numbers than the program prints.

The page in a real browser, both engines: its numbers are the library's, whatever is dropped into
it.

    pip install playwright; npm install pyodide@0.29 axe-core  # and a Chromium: /usr/bin/chromium
    AUTOLAYERS_NODE_MODULES=node_modules python -m pytest -m browser
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import pathlib
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import HEADERS

import autolayers
from autolayers.bundled import read
from autolayers.cli.model import load
from autolayers.web.build import build
from autolayers.web.engine import Engine
from autolayers.web.server import PageServer

pytestmark = pytest.mark.browser
NODE_MODULES = os.environ.get("AUTOLAYERS_NODE_MODULES", "")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
if CHROMIUM is None:
    pytest.skip("no Chromium here", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")

MODELS = [
    "llama-3.2-1b-q8_0",
    "llama-3.1-8b-q4_k_m",
    "qwen3-8b-q4_k_m",
    "gemma-2-9b-q4_k_m",
    "gemma-3-4b-q8_0",
    "phi-3-mini-q4_k_m",
    "qwen3-30b-a3b-q4_k_m",
    "gpt-oss-20b-mxfp4",
    "mamba2-2.7b-q4_k_m",
    "deepseek-v2-lite-q4_k_m",
]
MACHINES = ["8GiB", "rtx-3060", "24GiB", "rtx-3090,rtx-3060", "7900xtx"]
STATIC = pathlib.Path(autolayers.__file__).parent / "web" / "static"
PATIENCE = int(os.environ.get("AUTOLAYERS_PATIENCE", "120")) * 1000  # milliseconds


class _Files(http.server.SimpleHTTPRequestHandler):
    """A static host that knows ranges, with a file that is no model and one that never ends."""

    def do_GET(self) -> None:
        if self.path == "/hostile/page.gguf":
            return self._say(b"<html><script>alert(1)</script>")
        if self.path == "/hostile/endless.gguf":
            return self._endless()
        path = pathlib.Path(self.translate_path(self.path))
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not found or not path.is_file():
            return super().do_GET()
        data, start, end = path.read_bytes(), int(found[1]), int(found[2]) + 1
        self._say(data[start:end], 206, f"bytes {start}-{min(end, len(data)) - 1}/{len(data)}")

    def _say(self, body: bytes, status: int = 200, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(body)

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        start = (
            b"GGUF\x03\0\0\0"
            + b"".join(n.to_bytes(8, "little") for n in (1, 1, 1))
            + b"k\x08\0\0\0"
        )
        try:
            self.wfile.write(start + (1 << 30).to_bytes(8, "little"))
            while True:
                self.wfile.write(bytes(1 << 20))
        except OSError:
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Callable[[], None]]]:
    """The static page's address, and what stops its host."""
    pyodide = pathlib.Path(NODE_MODULES) / "pyodide"
    if not pyodide.is_dir():
        pytest.skip("no Pyodide: AUTOLAYERS_NODE_MODULES names the folder where npm installed it")
    folder = tmp_path_factory.mktemp("site")
    build(folder, str(pyodide))
    shutil.copy(HEADERS / "qwen3-8b-q4_k_m.gguf", folder)
    (folder / "on").mkdir()
    (folder / "on" / "one.html").write_text("<!doctype html><title>x</title><h1>One answer</h1>")
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Files, directory=str(folder))
    ) as host:
        threading.Thread(target=host.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{host.server_port}/", host.shutdown
        host.shutdown()


@pytest.fixture(scope="session")
def from_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page as it is built by default: Pyodide comes from public hosts."""
    folder = tmp_path_factory.mktemp("hosts")
    build(folder, lists="rtx-4090")
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Files, directory=str(folder))
    ) as host:
        threading.Thread(target=host.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{host.server_port}/"
        host.shutdown()


@pytest.fixture(scope="session")
def local() -> Iterator[str]:
    """The address of `autolayers web`."""
    with PageServer(Engine(load, here=True)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    quiet = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield found
        found.close()


@pytest.fixture(params=["local", "site"])
def page(request: pytest.FixtureRequest, browser: Any) -> Iterator[Any]:
    """A page of one of the engines; an error in its console fails the test."""
    found = request.getfixturevalue(request.param)
    address = found if isinstance(found, str) else found[0]
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"dialog {dialog.message}"))
    page.set_default_timeout(PATIENCE)
    page.address = address
    page.goto(address)
    settled(page)
    yield page
    context.close()
    assert not errors


def settled(page: Any) -> None:
    """Waits until the newest question is answered, reasons, tables and all."""
    page.wait_for_timeout(150)
    page.wait_for_selector("body[data-asking=false]")


def answered(page: Any) -> None:
    """Waits until the newest question is answered; its reasons may follow."""
    page.wait_for_timeout(150)
    page.wait_for_selector("body:not([data-asking=plan])")


def choose(page: Any, **fields: str) -> None:
    page.locator("#more").evaluate("details => { details.open = true }")
    for name, value in fields.items():
        place = page.locator(f"#{name}") if name != "gpu" else page.locator("#cards input").first
        if name in ("ctk", "ctv", "fa", "strategy"):
            place.select_option(value)
        else:
            place.fill(value)
            place.blur()
    answered(page)


def shown(page: Any) -> dict[str, list[int]]:
    """The table of bytes: device -> weights, cache, compute, extra, growth, margin, remaining."""
    rows = page.locator("#bytes tbody tr").all()
    return {
        row.locator("th").text_content().split()[0]: [
            int(cell.replace(",", "")) if cell != "–" else 0
            for cell in row.locator("td").all_text_contents()
        ]
        for row in rows
    }


@pytest.mark.parametrize("gpu", MACHINES)
def test_numbers_are_the_librarys(page: Any, gpu: str) -> None:
    for name in MODELS:
        question = f"model={name}&gpu={gpu}&ram=64GiB&ctk=q8_0&ctv=q8_0"
        page.evaluate("hash => { location.hash = hash }", question)
        answered(page)
        words = ["--gpu", gpu, "--ram", "64GiB", "-ctk", "q8_0", "-ctv", "q8_0"]
        plan = autolayers.plan(autolayers.read_model(HEADERS / f"{name}.gguf"), words)
        want = {
            d.name: [d.model, d.context, d.compute, d.extra, 0, d.margin, d.remaining]
            for d in plan.devices
        }
        found = shown(page)
        assert {device: found[device] for device in want} == want, name
        assert page.inner_text("#command").endswith(" ".join(plan.flags)) or "'" in page.inner_text(
            "#command"
        )


def test_every_control_changes_the_launch(page: Any) -> None:
    choose(page, model="qwen3-8b-q4_k_m", gpu="8GiB", ram="32GiB")
    for field, value, flag in [
        ("ctx", "16k", "-c 16384"),
        ("np", "2", "-np 2"),
        ("ub", "256", "-ub 256"),
        ("ctk", "q8_0", "-ctk q8_0"),
        ("ctv", "q8_0", "-ctv q8_0"),
        ("fa", "on", "-fa on"),
        ("flags", "--swa-full", "--swa-full"),
    ]:
        choose(page, **{field: value})
        assert flag in page.inner_text("#command"), field
    page.locator("#ctx-slider").fill("40")
    answered(page)
    assert f"-c {page.input_value('#ctx')}" in page.inner_text("#command")
    page.select_option("#shell", "powershell")
    assert page.inner_text("#command").startswith("llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M ")
    page.click("#add-card")
    page.locator("#cards input").nth(1).fill("rtx-3060")
    page.locator("#cards input").nth(1).blur()
    answered(page)
    assert list(shown(page)) == ["CUDA0", "CUDA1", "RAM"]
    page.locator("#file-box").evaluate("details => { details.open = true }")
    page.select_option("#format", "compose")
    with page.expect_download() as download:
        page.click("#download")
    text = pathlib.Path(download.value.path()).read_text()
    assert download.value.suggested_filename == "compose.yaml"
    assert (
        "unsloth/Qwen3-8B-GGUF:Q4_K_M" in text and "/path/to" not in text and "pyodide" not in text
    )


def test_nothing_of_an_older_question_is_shown(page: Any) -> None:
    """Tables and curves go with their question; an answer that comes late is not drawn; an error
    stands alone."""
    choose(page, model="llama-3.2-1b-q8_0", gpu="8", ram="32")
    page.locator("#curve-box > summary").click()
    page.wait_for_selector("#curve circle")
    settled(page)
    page.locator("#curve-box").evaluate("details => { details.open = false }")
    choose(page, gpu="12")
    assert page.locator("#curve circle").count() == 0
    page.locator("#known-box > summary").click()
    page.wait_for_selector("#known td.yes")
    choose(page, gpu="rtx-9999")
    assert (
        not page.is_visible("#verdict")
        and not page.is_visible("#answer")
        and not page.is_visible("#result")
    )
    assert "rtx-9999" in page.inner_text("#gpu-error")
    assert page.locator("#cards input").first.get_attribute("aria-invalid") == "true"
    choose(page, gpu="8")
    assert page.is_visible("#verdict") and not page.is_visible("#gpu-error")


def test_ram_that_is_not_known_is_a_condition(page: Any) -> None:
    choose(page, model="llama-3-70b-f16", gpu="8", ram="")
    if page.input_value("#ram") == "" and "127.0.0.1" in page.address:
        plan = autolayers.plan(read("llama-3-70b-f16"), ["--gpu", "8GiB"])
        assert page.inner_text("#verdict").startswith(
            f"Runs, but slowly if {plan.host.needed / 2**30:.1f} GiB of RAM are free. "
        )
        assert page.get_attribute("#verdict", "class") == "if"
    choose(page, ram="64")
    assert page.inner_text("#verdict") == "Does not fit: 66.1 GiB missing in RAM."
    choose(page, model="qwen3-8b-q4_k_m", ctx="131072", ram="8")
    assert page.get_attribute("#verdict", "class") == "no"
    page.locator("#notes button[aria-label^='Try -c ']").click()
    answered(page)
    assert page.inner_text("#verdict").startswith("Fits. ")


def test_a_bar_shows_what_the_answer_before_took(page: Any) -> None:
    choose(page, model="qwen3-8b-q4_k_m", gpu="12", ram="32", ctx="8192")
    before = page.locator(".row .amount").first.inner_text().partition(" of ")[0]
    choose(page, ctx="16384")
    assert page.locator(".bar .was").first.get_attribute("title") == f"Before: {before}"
    choose(page, fa="on")
    assert page.locator(".bar .was").count() == 0


def test_the_bars_follow_the_slider(page: Any) -> None:
    """At once, before the plan for that context comes."""
    choose(page, model="qwen3-30b-a3b-q4_k_m", gpu="rtx-3060", ram="32", ctx="")
    settled(page)
    before = page.locator("#bars .amount").first.inner_text()
    dragged = """() => {
        const slider = document.getElementById("ctx-slider");
        slider.value = 100;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        return document.querySelector("#bars .amount").textContent;
    }"""
    assert "missing of" in page.evaluate(dragged)
    answered(page)
    assert (
        page.input_value("#ctx") == "40960"
        and "missing" not in page.locator("#bars .amount").first.inner_text()
    )
    assert page.locator("#bars .amount").first.inner_text() != before


def test_the_answer_is_saved_as_a_picture(page: Any) -> None:
    with page.expect_download() as download:
        page.click("#picture")
    data = pathlib.Path(download.value.path()).read_bytes()
    assert download.value.suggested_filename.endswith(".png") and data.startswith(b"\x89PNG")


def test_nothing_jumps_while_the_page_loads(page: Any) -> None:
    """The layout shifts by less than 0.1 from the first paint to the last table, as Web Vitals want
    it."""
    page.add_init_script("""window.shifted = 0;
        new PerformanceObserver(list => list.getEntries().forEach(entry => {
            window.shifted += entry.hadRecentInput ? 0 : entry.value;
        })).observe({ type: "layout-shift", buffered: true });""")
    page.goto(page.address.partition("?")[0] + "#model=qwen3-30b-a3b-q4_k_m&gpu=rtx-3060&ram=32")
    page.reload()
    settled(page)
    assert page.evaluate("window.shifted") < 0.1


def test_a_gpu_that_shares_the_ram_says_how_much_there_is(page: Any) -> None:
    choose(page, gpu="rtx-3060", ram="32")
    page.locator("#chips button", has_text="M4 Pro 24 GB").click()
    answered(page)
    assert page.input_value("#ram") == "" and page.get_attribute("#verdict", "class") == "yes"
    choose(page, gpu="rtx-3090")
    assert page.input_value("#ram") == "32" and page.get_attribute("#verdict", "class") == "yes"


def test_a_machine_without_a_gpu_shows_ram_alone(page: Any) -> None:
    choose(page, model="llama-3.2-1b-q8_0", gpu="none", ram="16")
    assert "All of it on the CPU" in page.inner_text("#verdict") and list(shown(page)) == ["RAM"]


def test_a_row_of_the_quantisations_is_planned(page: Any) -> None:
    choose(page, model="qwen3-8b-q4_k_m", gpu="12", ram="32", ctx="8192")
    settled(page)
    row = page.locator("#quants tr", has_text="Q8_0")
    assert row.locator("td").nth(3).inner_text() == "almost the original"
    assert set(page.locator("#quants td:last-child").all_inner_texts()) == {"8k"}
    rate = row.locator("td").nth(1).inner_text()
    row.locator("button").click()
    answered(page)
    assert page.input_value("#model") == "qwen3-8b-q8_0" and page.inner_text("#numbers dd") == rate


def test_words_are_searched(page: Any) -> None:
    """In the list as they are typed, on the Hub only when that is chosen."""
    asked: list[str] = []

    def hub(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(
            json=[{"id": "Qwen/Qwen3-8B-GGUF", "downloads": 1234}],
            headers={"Access-Control-Allow-Origin": "*"},
        )

    page.route("https://huggingface.co/**", hub)
    page.fill("#model", "qwen3 8b")
    page.wait_for_selector("[role=option]:has-text('qwen3-8b-q4_k_m')")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#model", "aria-activedescendant")
    page.keyboard.press("Enter")
    answered(page)
    assert page.input_value("#model").startswith("qwen3-8b-") and asked == []
    choose(page, model="qwen3 8b instruct please")
    page.locator("#error button", has_text="Search huggingface.co").click()
    page.wait_for_selector("#error button:has-text('Qwen/Qwen3-8B-GGUF')")
    assert len(asked) == 1 and "search=qwen3%208b%20instruct%20please" in asked[0]


@pytest.mark.parametrize("page", ["site"], indirect=True)
def test_a_file_that_was_not_read_yet_is_planned_by_its_button(page: Any) -> None:
    """The keyboard plans each file of a repository, and reads the header of that file alone."""
    data = (HEADERS / "qwen3-8b-q4_k_m.gguf").read_bytes().ljust(2 << 20, b"\0")
    read: list[str] = []
    size = 5_021_851_200

    def hub(route: Any) -> None:
        address = route.request.url
        if "/api/models/" in address:
            names = ("Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-Q8_0.gguf")
            files = [{"type": "file", "path": name, "size": size} for name in names]
            return route.fulfill(json=files, headers={"Access-Control-Allow-Origin": "*"})
        read.append(address.rpartition("/")[2].partition("?")[0])
        headers = {
            "Access-Control-Allow-Origin": "*",
            "Access-Control-Expose-Headers": "Content-Range",
            "Content-Range": f"bytes 0-{len(data) - 1}/{size}",
        }
        route.fulfill(status=206, body=data, headers=headers)

    page.route("https://huggingface.co/**", hub)
    choose(page, model="Qwen/Qwen3-8B-GGUF", gpu="12", ram="32")
    settled(page)
    assert set(read) == {"Qwen3-8B-Q4_K_M.gguf"}
    other = page.locator("#quants button", has_text="Q8_0")
    other.focus()
    page.keyboard.press("Enter")
    answered(page)
    assert page.input_value("#model").endswith("Q8_0.gguf") and "Qwen3-8B-Q8_0.gguf" in read
    assert "-hf Qwen/Qwen3-8B-GGUF:Q8_0" in page.inner_text("#command")


def test_help_opens_beside_its_button(page: Any) -> None:
    page.locator("#more").evaluate("details => { details.open = true }")
    for name in ("model", "gpu", "ram", "ctx"):
        asks, text = page.locator(f"[popovertarget=about-{name}]"), page.locator(f"#about-{name}")
        asks.click()
        button, shown = asks.bounding_box(), text.bounding_box()
        below = shown["y"] - button["y"] - button["height"]
        above = button["y"] - shown["y"] - shown["height"]
        assert 0 <= max(below, above) < 12, (name, button, shown)
        page.keyboard.press("Escape")


@pytest.mark.parametrize("page", ["local"], indirect=True)
def test_a_dark_scheme_is_dark_before_any_script(page: Any, browser: Any) -> None:
    """And the button says what it changes to."""
    context = browser.new_context(color_scheme="dark", java_script_enabled=False)
    plain = context.new_page()
    plain.goto(page.address)
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    seen = browser.new_context(color_scheme="dark").new_page()
    seen.goto(page.address)
    assert max(seen.evaluate(ground)[:3]) < 60 and seen.inner_text("#theme") == "Light"
    picture = plain.screenshot(clip={"x": 2, "y": 700, "width": 4, "height": 4})
    assert picture == seen.screenshot(clip={"x": 2, "y": 700, "width": 4, "height": 4})
    for other in (context, seen.context):
        other.close()


def test_heads_stand_over_their_columns(page: Any) -> None:
    settled(page)
    sides = page.evaluate(
        """() => ["#quants", "#bytes"].flatMap(place => {
          const table = document.querySelector(place + " table");
          const sides = { start: "left", end: "right" };
          const side = (cell) => sides[getComputedStyle(cell).textAlign]
            ?? getComputedStyle(cell).textAlign;
          const row = table.querySelector("tbody tr");
          const heads = [...table.querySelectorAll("thead th")];
          return heads.map((head, i) => [place, i, side(head), side(row.children[i])]);
        })"""
    )
    assert sides and all(head == cell for _, _, head, cell in sides), sides


def test_a_typed_key_does_not_stay_in_the_address(page: Any) -> None:
    choose(page, model="qwen3-8b-q4_k_m", gpu="12", ram="32", flags="--api-key SECRET -np 1")
    assert "SECRET" not in page.evaluate("location.href")
    assert "-np+1" in page.evaluate("location.hash") and "-np 1" in page.inner_text("#command")


@pytest.mark.parametrize("page", ["site"], indirect=True)
def test_a_link_of_a_dropped_file_asks_for_the_file(page: Any) -> None:
    page.evaluate("hash => { location.hash = hash }", "model=my-model.gguf&gpu=12&ram=32")
    page.wait_for_selector("#model-error:has-text('is a file on a computer: drop it on this page')")


@pytest.mark.parametrize("page", ["local"], indirect=True)
def test_a_modelfile_keeps_its_name(page: Any) -> None:
    page.locator("details:has(#format)").evaluate("details => { details.open = true }")
    page.select_option("#format", "ollama")
    with page.expect_download() as found:
        page.click("#download")
    assert found.value.suggested_filename == "Modelfile"


def test_typing_a_model_keeps_the_answer(page: Any) -> None:
    """Nothing is asked while the list is open; its first match is the usual quantisation, and Enter
    takes it."""
    choose(page, model="qwen3-8b-q4_k_m", gpu="12", ram="32")
    said = page.inner_text("#verdict")
    page.fill("#model", "qwen3 30b")
    page.wait_for_timeout(1500)
    assert page.locator("#model-field [role=option]").first.is_visible()
    assert page.inner_text("#error") == ""
    assert page.inner_text("#verdict") == said
    page.keyboard.press("Enter")
    answered(page)
    assert "q4_k_m" in page.input_value("#model") and "30b" in page.input_value("#model")


def test_the_focus_stays_while_a_table_fills(page: Any) -> None:
    choose(page, model="llama-3.2-1b-q8_0", gpu="12", ram="32")
    page.locator("#known-box").evaluate("details => { details.open = true }")
    page.wait_for_selector("#known button")
    page.locator("#known button").first.focus()
    model = page.evaluate("document.activeElement.textContent")
    page.wait_for_function(
        """() => {
          const hint = document.getElementById("known-hint").textContent;
          return !(Number(hint.match(/(\\d+) of/)?.[1] ?? 99) < 5);
        }"""
    )
    assert page.evaluate("document.activeElement.textContent") == model


@pytest.mark.parametrize("page", ["local"], indirect=True)
def test_a_list_asks_for_each_model_once(page: Any) -> None:
    """Also if it is opened while the reasons are under way, and opened again."""
    asked: list[str] = []

    def take(route: Any) -> None:
        question = json.loads(route.request.post_data)
        if question["gpu"] == "13":  # not the page's own first question
            asked.append(question["model"])
        route.fulfill(json={"error": "not now"})

    page.route("**/call/take", take)
    choose(page, model="llama-3.2-1b-q8_0", gpu="13", ram="32")
    for shown in (True, False, True):
        page.locator("#known-box").evaluate("(box, open) => { box.open = open }", shown)
        page.wait_for_timeout(100)
    settled(page)
    assert len(asked) > 10 and len(asked) == len(set(asked))


def test_the_page_leads_to_a_running_server(page: Any) -> None:
    """The answer names model and machine, and links to llama.cpp, to the model with its size, and
    to how it is computed."""
    choose(page, model="qwen3-8b-q4_k_m", gpu="rtx-3060", ram="32")
    subject = " ".join(page.inner_text("#subject").split())
    assert subject == "Qwen3 8B Q4_K_M on RTX 3060 12 GB, 32 GB of RAM"
    assert page.get_attribute("#get-llama", "href").endswith("/ggml-org/llama.cpp/releases")
    model = page.locator("#get-model")
    assert model.get_attribute("href").startswith("https://huggingface.co/unsloth/Qwen3-8B-GGUF")
    assert re.fullmatch(r"get the model \(about 4\.\d+ GiB\)", model.inner_text())
    assert "-hf unsloth/Qwen3-8B-GGUF:Q4_K_M" in page.inner_text("#command")


def test_a_draft_goes_with_its_model(page: Any) -> None:
    """And by its button. Without a GPU it gains nothing, and is left out."""
    choose(page, gpu="rtx-3060", ram="32")
    names = ("llama-3.1-8b-q4_k_m", "llama-3.2-1b-q8_0")
    page.set_input_files("#file", [str(HEADERS / f"{name}.gguf") for name in names])
    page.wait_for_selector("#command:has-text('-md ')")
    page.locator("#more").evaluate("details => { details.open = true }")
    page.click("#forget-extras")
    answered(page)
    assert "-md " not in page.inner_text("#command")
    page.set_input_files("#file", [str(HEADERS / f"{name}.gguf") for name in names])
    page.wait_for_selector("#command:has-text('-md ')")
    choose(page, model="qwen3-8b-q4_k_m")
    assert "-md " not in page.inner_text("#command") and page.input_value("#draft") == ""


def test_layers_have_their_place_and_no_repeated_colour(page: Any) -> None:
    """Eight GPUs are eight rows: a colour says GPU or RAM alone."""
    choose(page, model="llama-3.3-70b-q4_k_m", gpu="8xrtx-3060", ram="64")
    assert page.locator("#strip .layers").count() == 8
    kinds = page.evaluate(
        "[...new Set([...document.querySelectorAll('#strip li')].map(li => li.className))]"
    )
    assert kinds == ["whole"]


def test_a_phone_shows_what_a_list_is_for(page: Any) -> None:
    """Verdict, rate and context of each row lie within 360 pixels."""
    page.set_viewport_size({"width": 360, "height": 800})
    choose(page, model="qwen3-8b-q4_k_m", gpu="12", ram="32")
    settled(page)
    row = page.locator("#quants tbody tr").first
    assert "tokens/s" in row.locator("td").nth(1).evaluate(
        "cell => getComputedStyle(cell, '::after').content"
    )
    for cell in row.locator("td:visible").all():
        box = cell.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360


def test_two_answers_stand_side_by_side(page: Any) -> None:
    choose(page, model="qwen3-8b-q4_k_m", gpu="6", ram="32")
    page.click("#pin")
    choose(page, gpu="24")
    settled(page)
    changed = page.locator("#comparison tr.changed")
    assert page.locator("#comparison td").count() == 16 and changed.count() >= 2
    assert page.inner_text("#now-bars p") == "Qwen3 8B Q4_K_M on a GPU of 24 GB, 32 GB of RAM"
    assert "beside=" in page.url
    other = page.context.new_page()
    other.set_default_timeout(PATIENCE)
    other.goto(page.url)
    other.wait_for_selector("#comparison td")
    page.click("#unpin")
    assert not page.is_visible("#compare")


def test_a_log_is_explained(page: Any) -> None:
    page.locator("#explain-box summary").click()
    page.fill(
        "#log",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8000.00 MiB on "
        "device 0: "
        "cudaMalloc failed: out of memory\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 8388608000\n",
    )
    page.click("#explain")
    page.wait_for_selector("#explained:has-text('CUDA0')")


def test_what_else_could_be_asked_for_is_a_click(page: Any) -> None:
    choose(page, model="qwen3-30b-a3b-q4_k_m", gpu="12GiB", ram="64GiB", workload="agent")
    button = page.locator("#notes button[aria-label='Try -ctk q8_0 -ctv q8_0']")
    button.wait_for()
    button.click()
    answered(page)
    assert page.input_value("#ctk") == "q8_0" and "-ctv q8_0" in page.inner_text("#command")


def test_a_machine_file_goes_in_and_out(page: Any, tmp_path: pathlib.Path) -> None:
    machine = {
        "devices": [{"card": "rtx-3090", "uuid": "GPU-secret"}],
        "host": {"total": 64 << 30, "bandwidth": 5e10},
    }
    (tmp_path / "box.json").write_text(json.dumps(machine))
    page.set_input_files("#machine-file", str(tmp_path / "box.json"))
    page.wait_for_selector("#machine-devices:has-text('rtx-3090')")
    answered(page)
    assert list(shown(page)) == ["CUDA0", "RAM"] and "secret" not in page.url
    page.locator("#more").evaluate("details => { details.open = true }")
    with page.expect_download() as download:
        page.click("#save-machine")
    saved = json.loads(pathlib.Path(download.value.path()).read_text())
    assert saved["devices"][0]["bandwidth"] == 936e9 and saved["host"]["bandwidth"] == 5e10
    page.click("#forget-machine")
    assert page.locator("#cards input").first.is_visible()


def test_a_link_is_the_plan(page: Any, browser: Any) -> None:
    choose(page, model="gpt-oss-20b-mxfp4", gpu="rtx-3060", ram="48GiB", ctx="32768")
    command = page.inner_text("#command")
    assert "-c 32768" in command
    choose(page, ctx="8192")
    page.go_back()
    answered(page)
    assert page.inner_text("#command") == command and page.input_value("#ctx") == "32768"
    page.click("#share")
    page.wait_for_selector("#share:has-text('Copied')")
    link, copied = page.url, page.evaluate("navigator.clipboard.readText()")
    # Nobody else can open the address of a page of `autolayers web`: it copies the answer
    assert copied == link or (command in copied and "127.0.0.1" not in copied)
    other = page.context.new_page()
    other.set_default_timeout(PATIENCE)
    other.goto(link)  # a second tab has the token too
    other.wait_for_selector("#result:not([hidden])")
    answered(other)
    assert other.inner_text("#command") == command


def test_a_dropped_file_is_planned(page: Any, tmp_path: pathlib.Path) -> None:
    """Only the header is read: the file is 4 GiB long and nearly all of it is a hole."""
    data = (HEADERS / "llama-3.1-8b-q4_k_m.gguf").read_bytes()
    path = tmp_path / "mine.gguf"
    path.write_bytes(data)
    with path.open("r+b") as file:
        file.truncate(autolayers.read_header(path).files[0].promised)
    page.set_input_files("#file", str(path))
    page.wait_for_selector("#model-facts:has-text('llama-3.1-8b')", state="attached")
    choose(page, gpu="24GiB", ram="32")
    assert page.inner_text("#verdict").startswith("Fits. ")
    assert "llama-server -m mine.gguf -ngl 33" in page.inner_text("#command")


NASTY = "<img src=x onerror=alert(1)>\u202e\x1b[31m\r\n" + "A" * 5000


def test_hostile_metadata_is_text(page: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "<b>x.gguf"
    data = (HEADERS / "qwen3-8b-q4_k_m.gguf").read_bytes()
    # behind the key and its type: length, text
    at = data.index(b"general.name") + len(b"general.name") + 4
    length = int.from_bytes(data[at : at + 8], "little")
    name = NASTY.encode()
    path.write_bytes(data[:at] + len(name).to_bytes(8, "little") + name + data[at + 8 + length :])
    page.set_input_files("#file", str(path))
    settled(page)
    page.wait_for_selector("#model-facts:has-text('onerror')", state="attached")
    assert page.locator("main img, main b").count() == 0


@pytest.mark.parametrize("page", ["local"], indirect=True)
def test_a_model_of_the_list_keeps_the_list_and_shows_the_answer(page: Any) -> None:
    """The list was computed anew at every click, and the answer stayed far above the window; a
    screen reader heard nothing of it."""
    page.set_viewport_size({"width": 1280, "height": 800})
    choose(page, model="qwen3-8b-q4_k_m", gpu="24", ram="32")
    page.locator("#known-box").evaluate("details => { details.open = true }")
    page.wait_for_function("() => document.querySelectorAll('#known tbody tr').length > 2")
    models = "[...document.querySelectorAll('#known tbody tr')].map(row => row.dataset.model)"
    before = page.evaluate(models)
    said = page.inner_text("#announced")
    row = page.locator("#known tbody button").last
    title = row.inner_text()
    row.click()
    answered(page)
    assert set(before) <= set(page.evaluate(models))
    assert page.inner_text("#subject").startswith(title)
    top = page.locator("#subject").bounding_box()["y"]
    assert -1 < top < 800
    assert page.inner_text("#announced") not in ("", said)
    assert page.locator("#announced").get_attribute("role") == "status"


@pytest.mark.parametrize("page", ["site"], indirect=True)
def test_a_computer_whose_name_has_several_sizes_is_asked_for(page: Any) -> None:
    """ "Apple M4" was the smallest Mac of that name, silently."""
    page.evaluate("""() => {
        const named = () => "ANGLE (Apple, ANGLE Metal Renderer: Apple M4, Unspecified Version)";
        HTMLCanvasElement.prototype.getContext = () =>
            ({ getExtension: () => ({ UNMASKED_RENDERER_WEBGL: 1 }), getParameter: named });
    }""")
    before = page.locator("#cards input").first.input_value()
    page.click("#this-computer")
    page.wait_for_selector("#computer-facts button")
    assert page.locator("#cards input").first.input_value() == before
    sizes = page.locator("#computer-facts button").all_inner_texts()
    assert len(sizes) > 1 and any("24" in size for size in sizes)
    page.locator("#computer-facts button", has_text="24").first.click()
    answered(page)
    assert "M4 24 GB" in page.inner_text("#subject")


@pytest.mark.parametrize(("width", "height"), [(360, 740), (412, 915), (768, 1024), (1280, 800)])
def test_the_question_is_on_the_first_screen(page: Any, width: int, height: int) -> None:
    """It began at 1278 of 740 pixels of a phone, and a box lay over Copy."""
    page.set_viewport_size({"width": width, "height": height})
    page.evaluate("window.scrollTo(0, 0)")
    for field in ("#cards input", "#ram", "#model", "#jobs"):
        box = page.locator(field).first.bounding_box()
        assert box["y"] + box["height"] < height, field
    page.locator("#copy").scroll_into_view_if_needed()
    on_top = """() => {
        const copy = document.getElementById("copy"), box = copy.getBoundingClientRect();
        const found = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
        return copy.contains(found);
    }"""
    assert page.evaluate(on_top)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_would_fit_stands_before_the_command_that_fails(page: Any) -> None:
    choose(page, model="llama-3.3-70b-q4_k_m", gpu="rtx-3060", ram="32")
    page.wait_for_selector("#notes:has-text('What would make it fit')")
    page.wait_for_selector("#also:has-text('What runs instead')")
    names = ("#notes", "#also", "#command")
    place = {name: page.locator(name).bounding_box()["y"] for name in names}
    assert max(place["#notes"], place["#also"]) < place["#command"]
    choose(page, model="qwen3-8b-q4_k_m")
    page.wait_for_selector("#also:has-text('Also good on this machine')")
    assert page.locator("#also").bounding_box()["y"] > page.locator("#command").bounding_box()["y"]


def test_what_is_no_model_is_one_line(page: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    page.set_input_files("#file", str(tmp_path / "x.gguf"))
    page.wait_for_selector("#model-error:not([hidden])")
    assert "x.gguf: " in page.inner_text("#model-error")
    choose(page, model="qwen3-8b-q4_k_m", gpu="12GiB", ram="32")
    assert page.inner_text("#error") == "" and page.inner_text("#verdict").startswith("Fits. ")


@pytest.mark.parametrize("page", ["site"], indirect=True)
def test_an_address_is_read_by_its_start(page: Any) -> None:
    choose(page, gpu="24GiB")
    choose(page, model=page.address + "qwen3-8b-q4_k_m.gguf")
    assert "llama-server -m qwen3-8b-q4_k_m.gguf" in page.inner_text("#command")
    for name in ("page", "endless"):
        choose(page, model=f"{page.address}hostile/{name}.gguf")
        page.wait_for_selector("#model-error:not([hidden])")
        assert f"hostile/{name}.gguf" in page.inner_text("#model-error")


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (b"changed", None, ""),
        (b"", None, ""),
        (b"changed", b"changed", "it is not the file that was meant"),
        (b"", b"", "does not load from cdn.jsdelivr.net or unpkg.com"),
    ],
)
def test_what_public_hosts_send_is_checked(
    from_hosts: str, browser: Any, first: bytes, second: bytes | None, error: str
) -> None:
    """A host that sends something else, or nothing, is followed by the second; then one line says
    it. None: what the package has."""
    pyodide = pathlib.Path(NODE_MODULES) / "pyodide"
    if not pyodide.is_dir():
        pytest.skip("no Pyodide: AUTOLAYERS_NODE_MODULES names the folder where npm installed it")

    def answer(route: Any) -> None:
        sent = first if "jsdelivr" in route.request.url else second
        headers = {"Access-Control-Allow-Origin": "*"}
        if sent is None:
            route.fulfill(path=pyodide / route.request.url.rpartition("/")[2], headers=headers)
        elif sent:
            route.fulfill(body=sent, headers=headers)
        else:
            route.abort()

    page = browser.new_context(service_workers="block").new_page()
    page.set_default_timeout(PATIENCE)
    page.route(re.compile("jsdelivr|unpkg"), answer)
    page.goto(from_hosts)
    page.wait_for_selector("#verdict:has-text('Fits')")  # of the build, before Python is there
    page.wait_for_selector("#status:has-text('could not start')" if error else "body:not(.early)")
    # the build's answer is right, and nothing loads any more
    assert error in page.inner_text("#status") and page.is_visible("#verdict")
    assert not error or not page.is_visible("#loading")
    page.context.close()


def test_the_page_works_before_python_is_there(from_hosts: str, browser: Any) -> None:
    """Chips are answered by files of the build; a question that needs Python waits for it."""
    pyodide = pathlib.Path(NODE_MODULES) / "pyodide"
    if not pyodide.is_dir():
        pytest.skip("no Pyodide: AUTOLAYERS_NODE_MODULES names the folder where npm installed it")
    held: list[Any] | None = []

    def send(route: Any) -> None:
        if held is not None:
            return held.append(route)
        headers = {"Access-Control-Allow-Origin": "*"}
        route.fulfill(path=pyodide / route.request.url.rpartition("/")[2], headers=headers)

    page = browser.new_context(service_workers="block").new_page()
    page.set_default_timeout(PATIENCE)
    page.route(re.compile("jsdelivr|unpkg"), send)
    page.goto(from_hosts)
    page.wait_for_selector("#verdict:has-text('Fits')")
    page.locator("#chips button", has_text="RTX 4090").click()
    page.wait_for_selector("#subject:has-text('RTX 4090')")
    assert page.input_value("#cards input") == "rtx-4090"
    choose_ram = page.locator("#ram")
    choose_ram.fill("16")
    choose_ram.blur()
    page.wait_for_selector("body[data-asking=plan]")
    assert "32 GB of RAM" in page.inner_text("#subject")
    waiting, held = held, None
    for route in waiting:
        send(route)
    page.wait_for_selector("#subject:has-text('16 GB of RAM')")
    page.context.close()


def test_a_page_starts_without_its_first_answer(
    browser: Any, site: tuple[str, Callable[[], None]]
) -> None:
    """first.json may be missing: then Python answers."""
    page = browser.new_context(service_workers="block").new_page()
    page.set_default_timeout(PATIENCE)
    page.route("**/first.json", lambda route: route.fulfill(status=404, body="not here"))
    page.goto(site[0])
    page.wait_for_selector("#verdict:has-text('Fits')")
    assert page.inner_text("#error") == ""
    page.context.close()


@pytest.mark.parametrize("page", ["site"], indirect=True)
def test_a_second_python_computes_the_reasons(page: Any) -> None:
    """A change is planned by the first, and waits for none of them."""
    choose(page, model="qwen3-8b-q4_k_m", gpu="12", ram="32")
    settled(page)
    assert len(page.workers) == 2


@pytest.mark.parametrize("page", ["site"], indirect=True)
def test_it_works_without_a_network(page: Any) -> None:
    page.evaluate("navigator.serviceWorker.ready")
    page.reload()  # the worker serves from here on
    settled(page)
    page.context.set_offline(True)
    page.reload()
    page.wait_for_selector("body:not(.early)")
    choose(page, model="qwen3-8b-q4_k_m", gpu="12GiB", ram="16")
    assert page.inner_text("#verdict").startswith("Fits. ")
    page.context.set_offline(False)
    page.goto(page.address + "on/one.html")
    page.context.set_offline(True)
    page.reload()
    assert page.inner_text("h1") == "One answer"
    page.context.set_offline(False)


@pytest.mark.parametrize("place", ["/a/", "/"])
def test_the_offline_worker_touches_only_its_own_caches(
    browser: Any, tmp_path: pathlib.Path, place: str
) -> None:
    """Those of other pages of this host, and of this page at another place there, stay as they
    are, and are not answered from, when this one is installed, used and replaced."""
    others = ["other", "autolayers", f"autolayers {place}", "autolayers /ab/ 1", "workbox-v1-/a/"]
    for folder in {place, "/b/"}:
        site = tmp_path / folder.strip("/")
        (site / "on").mkdir(parents=True)
        (site / "index.html").write_text("<!doctype html><title>x</title>")
        (site / "one.txt").write_text("kept")
        (site / "on" / "one.html").write_text("visited")
        shutil.copy(STATIC / "sw.js", site)
        configure(site, "1")
    handler = functools.partial(_Files, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as host:
        threading.Thread(target=host.serve_forever, daemon=True).start()
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        address = f"http://127.0.0.1:{host.server_port}"
        page.goto(address + place)
        page.evaluate(PLANT, [others, ["one.txt", "on/one.html", "./", "config.json"]])
        planted = page.evaluate(CACHES)
        assert set(planted) == set(others)
        installed(page, "1")
        assert page.evaluate(SAID, ["one.txt", "on/one.html"]) == ["kept", "visited"]
        page.goto(address + "/b/")
        installed(page, "1")
        apart = page.evaluate(CACHES)
        assert set(apart) == {*others, f"autolayers {place} 1", "autolayers /b/ 1"}
        configure(tmp_path / place.strip("/"), "2")
        page.goto(address + place)
        installed(page, "2")
        now = page.evaluate(CACHES)
        assert now.pop(f"autolayers {place} 2") and apart.pop(f"autolayers {place} 1")
        assert now == apart and {name: now[name] for name in others} == planted
        assert page.evaluate(SAID, ["one.txt", "on/one.html"]) == ["kept", "visited"]
        host.shutdown()
        context.set_offline(True)
        assert page.evaluate(SAID, ["one.txt", "on/one.html"]) == ["kept", "visited"]
        context.close()


PLANT = """([names, files]) => Promise.all(names.map(async (name) => {
  const cache = await caches.open(name);
  for (const file of files) await cache.put(file, new Response(`of ${name}`));
}))"""
SAID = """(files) => Promise.all(files.map(async (file) => (await fetch(file)).text()))"""
CACHES = """async () => {
  const said = async (name) => {
    const answers = await (await caches.open(name)).matchAll();
    return [name, (await Promise.all(answers.map((answer) => answer.text()))).sort()];
  };
  return Object.fromEntries(await Promise.all((await caches.keys()).map(said)));
}"""


def configure(site: pathlib.Path, version: str) -> None:
    config = {"version": version, "files": ["one.txt"], "sizes": {}, "pyodide": [], "wheel": ""}
    (site / "config.json").write_text(json.dumps(config))


def installed(page: Any, version: str) -> None:
    """Registers the page's worker as app.js does, and waits until it answers this page."""
    page.evaluate(
        """async (version) => {
          const claimed = new Promise((done) => {
            navigator.serviceWorker.addEventListener("controllerchange", done, { once: true });
          });
          await navigator.serviceWorker.register(`sw.js?${version}`);
          await claimed;
        }""",
        version,
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_everybody_can_use_it(page: Any, width: int, dark: bool) -> None:
    """No violation that axe-core finds; nothing wider than the screen; the keyboard reaches the
    controls."""
    page.set_viewport_size({"width": width, "height": 900})
    if (page.inner_text("#theme") == "Light") != dark:
        page.click("#theme")
    for state in (
        {"model": "llama-3.2-1b-q8_0", "gpu": "8", "ram": ""},
        {"gpu": "rtx-9999"},
        {"gpu": "2", "ctx": "131072"},
    ):
        choose(page, **state)
        page.evaluate(
            "document.querySelectorAll('details:not(#known-box, #curve-box)')"
            ".forEach(details => { details.open = true })"
        )
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == [], state
    choose(page, gpu="8", ctx="4096")
    asked = page.url
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "headline"
    # The link's own # was a question: it asked for the best model
    assert page.url == asked and "Llama 3.2 1B" in page.inner_text("#subject")
    page.focus(".skip")
    for key in ("Tab", "Enter", "Tab"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.id") == "copy"


def violations(page: Any) -> list[str]:
    """What axe-core finds."""
    axe = pathlib.Path(NODE_MODULES) / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("no axe-core: AUTOLAYERS_NODE_MODULES names the folder where npm installed it")
    page.evaluate(axe.read_text())
    found: list[str] = page.evaluate(
        "axe.run().then(({violations}) => violations.map(v => v.id + ': ' + v.nodes[0].html))"
    )
    return found
