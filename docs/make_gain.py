"""Writes docs/images/gain.svg, the README's first picture: what a usual launch gives, and what the
planned one does.

    python docs/make_gain.py

Both are planned here, as `autolayers compare --gpu rtx-3060 --ram 32GiB -- llama-server ...` does.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from autolayers import bundled
from autolayers.planner import Plan
from autolayers.planner.compare.yours import beside
from autolayers.report.look import GPU, INK, MARK, PAPER, RAM, SOFT
from autolayers.report.table import rounded
from autolayers.request import Request

IMAGE = Path(__file__).resolve().parent / "images" / "gain.svg"
MODEL, NAME = "qwen3-30b-a3b-q4_k_m", "Qwen3 30B-A3B, RTX 3060, 32 GB"
MACHINE = ("--gpu", "rtx-3060", "--ram", "32GiB")
WRITTEN = ("-ngl", "20", "-c", "16384")  # as many guides have it
# 480 wide, so that 15 pixels are 11 on a phone; the schemes are the reader's
WIDTH, HEIGHT, LEFT, BAR = 480, 260, 16, 350
STYLE = f"""\
text{{font:15px system-ui,sans-serif;fill:{INK}}} .big{{font-size:18px;font-weight:700}}
.soft{{fill:{SOFT}}} .code{{font:13px ui-monospace,monospace}}
.paper{{fill:{PAPER}}} .ours{{fill:{GPU}}} .yours{{fill:{RAM}}}
@media(prefers-color-scheme:dark){{text{{fill:#e6eaf2}} .soft{{fill:#aab4c8}} .paper{{fill:#10141c}}
.ours{{fill:#5b8def}} .yours{{fill:#e0913a}}}}"""


def planned() -> tuple[Plan, Plan]:
    """Return the launch as it is written, and the better one."""
    yours, better = beside(bundled.read(MODEL), Request.of([*MACHINE, *WRITTEN], {}))
    assert isinstance(yours, Plan) and yours.fits and better.fits
    return yours, better


def drawing(yours: Plan, better: Plan) -> str:
    kinds = (
        ("tokens/s", yours.speed.generation, better.speed.generation),
        ("prompt tokens/s", yours.speed.prompt, better.speed.prompt),
    )
    told = ", ".join(f"{unit}: {rounded(a)}, planned {rounded(b)}" for unit, a, b in kinds)
    lines = [text(26, NAME, "big")]
    y = 40
    for unit, *rates in kinds:
        y += 20
        lines.append(text(y, unit, "soft"))
        for rate, kind in zip(rates, ("yours", "ours"), strict=True):
            width = BAR * rate / max(rates)
            y += 26
            lines.append(
                f'<rect class="{kind}" x="{LEFT}" y="{y - 18}" width="{width:.0f}" height="22"/>'
            )
            lines.append(text(y - 1, rounded(rate), "big", LEFT + width + 8))
        y += 4
    for kind, label, flags in (("yours", "typed", WRITTEN), ("ours", "planned", better.flags)):
        y += 26
        lines.append(f'<rect class="{kind}" x="{LEFT}" y="{y - 12}" width="13" height="13"/>')
        lines.append(text(y, label, "soft", LEFT + 22))
        lines.append(text(y, " ".join(flags), "code", LEFT + 90))
    drawn = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(NAME)}. {escape(told)}">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n{drawn}\n'
        f'<g transform="translate({WIDTH - 44} 8) scale(.9)">{MARK}</g>\n</svg>\n'
    )


def text(y: float, words: str, kind: str, x: float = LEFT) -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y}">{escape(words)}</text>'


def render() -> str:
    return drawing(*planned())


if __name__ == "__main__":
    IMAGE.write_text(render(), encoding="utf-8")
