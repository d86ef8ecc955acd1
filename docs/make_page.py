"""Pictures of the page, and its figures against the library's: python docs/make_page.py
NODE_MODULES [--images]

Writes docs/images/page-*.png, prints how many bytes differ. Needs playwright (pip), Chromium,
and the npm package pyodide in NODE_MODULES, as tests/web/test_browser.py says.
"""

from __future__ import annotations

import functools
import http.server
import pathlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from playwright.sync_api import sync_playwright  # type: ignore[import-not-found, unused-ignore]

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import autolayers  # noqa: E402
from autolayers.bundled import read  # noqa: E402
from autolayers.cli.model import load  # noqa: E402
from autolayers.web.build import build  # noqa: E402
from autolayers.web.engine import Engine  # noqa: E402
from autolayers.web.server import PageServer  # noqa: E402

BEST = "#gpu=rtx-3060&ram=32"
PLAN = "#model=qwen3-30b-a3b-q4_k_m&gpu=rtx-3060&ram=32"
# Picture: the address, the size and scheme of the window, and what is brought into view
PICTURES = {
    "light": (BEST, 1280, 900, "light", ""),
    "dark": (BEST, 1280, 900, "dark", ""),
    "phone": (BEST, 390, 844, "light", ""),
    "error": ("#model=qwen3-8b-q4_k_m&gpu=rtx-9999&ram=32", 1280, 700, "light", ""),
    "not": ("#model=llama-3.3-70b-q4_k_m&gpu=rtx-3060&ram=32", 1280, 900, "light", ""),
    "yours": (PLAN + "&ctx=16384&yours=-ngl+20", 1280, 900, "light", ""),
    "quantisations": (PLAN, 1280, 900, "light", "#quants-title"),
    "compare": (
        PLAN + "&ctx=65536&beside=" + quote(PLAN[1:]),
        1280,
        900,
        "light",
        "#compare-title",
    ),
}
COMPARED = [
    ("llama-3.2-1b-q8_0", "8GiB"),
    ("qwen3-8b-q4_k_m", "rtx-3060"),
    ("llama-3.1-8b-q4_k_m", "8GiB"),
    ("gemma-3-12b-q4_k_m", "12GiB"),
    ("phi-4-q4_k_m", "16GiB"),
    ("gpt-oss-20b-mxfp4", "16GiB"),
    ("qwen3-30b-a3b-q4_k_m", "rtx-3060"),
    ("qwen3-32b-q4_k_m", "24GiB"),
    ("llama-3.3-70b-q4_k_m", "rtx-3090,rtx-3090"),
    ("gpt-oss-120b-mxfp4", "rtx-3090"),
]
PART_WHOLE = 1.2  # the formula of most sites: the file and 20 %


@contextmanager
def served(pyodide: str) -> Iterator[tuple[str, str]]:
    """The addresses of both engines."""
    with tempfile.TemporaryDirectory() as folder, PageServer(Engine(load, here=True)) as local:
        build(pathlib.Path(folder), pyodide)
        quiet = type(
            "Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None}
        )
        with http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(quiet, directory=folder)
        ) as host:
            for server in (local, host):
                threading.Thread(target=server.serve_forever, daemon=True).start()
            yield local.url, f"http://127.0.0.1:{host.server_port}/"
            local.shutdown()
            host.shutdown()


def settle(page: Any) -> None:
    page.wait_for_timeout(150)
    page.wait_for_selector("body[data-asking=false]")


def used(page: Any, model: str, gpu: str) -> list[int]:
    """Bytes of weights, cache, compute and others on each GPU, as the page's table has them."""
    page.evaluate("hash => { location.hash = hash }", f"model={model}&gpu={gpu}&ram=64GiB")
    page.wait_for_timeout(150)
    page.wait_for_selector("body:not([data-asking=plan])")
    rows = [
        row.locator("td").all_text_contents()[:4]
        for row in page.locator("#bytes tbody tr").all()[:-1]
    ]
    return [sum(int(cell.replace(",", "")) for cell in row if cell != "–") for row in rows]


def table(pages: list[Any]) -> Iterator[str]:
    yield "| model | machine | bytes on the GPUs: page, library | static page | file + 20 % |"
    yield "|---|---|---|---|---|"
    for name, gpu in COMPARED:
        plan = autolayers.plan(read(name), ["--gpu", gpu, "--ram", "64GiB"])
        want = [device.used for device in plan.devices]
        local, static = (
            "equal" if used(page, name, gpu) == want else "DIFFERENT" for page in pages
        )
        guess = plan.model.size * PART_WHOLE
        total = sum(want) + plan.host.used
        yield f"| {name} | {gpu} | {sum(want):,}, {local} | {static} | {guess / total - 1:+.0%} |"


def main(node_modules: str, compares: bool) -> None:
    """Draws; prints the table, if it `compares` both engines."""
    images = HERE / "images"
    images.mkdir(exist_ok=True)
    with (
        served(str(pathlib.Path(node_modules) / "pyodide")) as addresses,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, (plan, width, height, scheme, shown) in PICTURES.items():
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page = context.new_page()
            page.set_default_timeout(120_000)
            page.goto(addresses[0].partition("#")[0] + plan)
            if "yours=" in plan:  # a link's flags are not asked by themselves
                page.click("#error button")
            settle(page)
            if shown:
                page.locator(shown).evaluate("title => title.scrollIntoView()")
            page.screenshot(path=images / f"page-{name}.png")
            context.close()
        if not compares:
            return
        pages = []
        for address in addresses:
            page = browser.new_page()
            page.set_default_timeout(120_000)
            for cache in ("fresh", "filled"):
                start = time.perf_counter()
                page.goto(address)
                page.wait_for_selector("#verdict:not([hidden])")
                print(
                    f"{address[:20]}, {cache} cache: something to read after "
                    f"{time.perf_counter() - start:.1f} s"
                )
                page.wait_for_selector("#form:not([inert])")
                print(
                    f"{address[:20]}, {cache} cache: first answer after "
                    f"{time.perf_counter() - start:.1f} s"
                )
                settle(page)
            pages.append(page)
        print("\n".join(table(pages)))


if __name__ == "__main__":
    main(sys.argv[1], "--images" not in sys.argv)
