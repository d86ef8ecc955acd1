"""Static pages "MODEL on CARD" with their figures, a picture and a badge, and "the best models for
a machine", for search engines and previews of links.

    # {"on/qwen3-8b-q4_k_m-on-rtx-3060.html": b"...", "on/best-rtx-4060@16.html": ...,
    #  "sitemap.xml": ...}
    pages("https://example.org/autolayers", {"rtx-4060@16": (known, answer)})
"""

from __future__ import annotations

import os
from html import escape
from string import Template
from time import gmtime, strftime, time
from urllib.parse import quote

from .. import bundled
from ..builds.sources import NEWEST
from ..bundled import published
from ..devices.cards import CARDS
from ..planner import Plan, plan_request
from ..quoting import posix
from ..report.best import machine_words
from ..report.look import FREE, GPU, INK, MARGIN, MARK, PAPER, SHADES, SOFT, shade
from ..report.look import RAM as RAM_COLOUR
from ..report.table import rounded as rate
from ..units import GiB
from .form import request_of
from .verdict import verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

NOTHING: Mapping[str, Any] = {}

MODELS = (
    "qwen3.5-4b-q4_k_m",
    "qwen3.5-9b-q4_k_m",
    "gemma-4-12b-q4_k_m",
    "gpt-oss-20b-mxfp4",
    "gemma-4-26b-a4b-ud-q4_k_m",
    "qwen3.6-35b-a3b-ud-q4_k_m",
    "qwen3.8-27b-ud-q4_k_m",
    "gemma-4-31b-q4_k_m",
    "qwen3.5-122b-a10b-q4_k_m",
    "gpt-oss-120b-mxfp4",
)
MACHINES = ("rtx-3060", "rtx-4060-ti-16g", "rtx-3090", "rx-7900-xtx", "rtx-5090")
RAM = "64"
# Dark enough to be read as text on white
COLOURS = {"yes": "#166534", "if": "#92400e", "no": "#b91c1c"}
LEFT, BAR = 200, 940  # of the bars in a picture, 1200 wide
_DOCUMENT = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title><meta name="description" content="$about">\
<link rel="canonical" href="$url/$place">
<meta property="og:type" content="article"><meta property="og:url" content="$url/$place">
<meta property="og:title" content="$title"><meta property="og:description" content="$about">$image
<link rel="icon" href="../icon.svg"><link rel="stylesheet" href="../style.css"></head>
<body><header><p><img src="../icon.svg" alt="" width="26" height="26"> \
<a href="../">autolayers</a></p></header>
<main class="article"><h1>$title</h1>
$body
</main></body></html>
""")
_IMAGE = Template("""
<meta property="og:image" content="$url/$image.IMAGE">\
<meta name="twitter:card" content="summary_large_image">""")
_ANSWER = Template("""<h2 class="$state">$sentence</h2>
<p>$plain</p>
<p class="hint">$assumed</p>
<pre><code>$command</code></pre>
<p><a href="../#model=$model&amp;gpu=$card&amp;ram=$ram">\
Another card, more context, another quantisation?</a>
<a href="./">All models and cards</a></p>
<img class="picture" src="$name.svg" width="1200" height="630" \
alt="Memory of the GPU and of the RAM">
<table>$rows</table>
<p class="hint">$placement. $exact Speeds are predicted. \
Planned for llama.cpp b$build on $date.</p>""")
_BEST = Template("""<p class="yes">$first</p>
<pre><code>$command</code></pre>
<p><a href="../#gpu=$gpu&amp;ram=$ram">Code, agents, more RAM, another card?</a>
<a href="./">All models and cards</a></p>
<div class="scroll"><table><thead><tr><th scope="col">Model</th><th scope="col">Tokens/s</th>\
<th scope="col">Context</th><th scope="col">GiB</th>\
<th scope="col" class="left">Where</th></tr></thead>
<tbody>$rows</tbody></table></div>
<p class="hint">For chat with 16k of context, by a published index, then speed. Speeds are \
predicted. Planned for llama.cpp b$build on $date.</p>""")
_PICTURE = Template("""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 630" width="1200" height="630"
 role="img" aria-label="$label" font-family="system-ui, sans-serif">\
<rect width="1200" height="630" fill="$paper"/>
$drawn
<g transform="translate(60 578)">$mark</g>
<text x="104" y="603" font-size="24" fill="$soft">autolayers: exact memory of llama.cpp</text>
</svg>
""")
_BADGE = Template("""\
<svg xmlns="http://www.w3.org/2000/svg" width="$total" height="20" role="img" aria-label="$label"
 font-family="Verdana, sans-serif" font-size="11" fill="#fff" text-anchor="middle">
<rect width="$total" height="20" rx="3" fill="#334155"/>\
<rect x="$at" width="$rest" height="20" rx="3" fill="$colour"/>
<text x="$one" y="14">$left</text><text x="$two" y="14">$right</text></svg>
""")


def pages(
    url: str, lists: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = NOTHING
) -> dict[str, bytes]:
    """Return all files by name, for a site at `url`; `lists`: a machine's name -> its list of
    models, and the answer to the question for the best."""
    url = escape(url.rstrip("/"))
    texts: dict[str, str] = {}
    rows = []
    # A row of the index a model, a cell a card
    for model in MODELS:
        cells = []
        for card in MACHINES:
            plan = plan_request(bundled.read(model), request_of({"gpu": card, "ram": RAM}))
            name, answer = f"{model}-on-{card}", verdict(plan)
            texts[f"on/{name}.svg"] = picture(plan, model, card, answer)
            texts[f"badge/{name}.svg"] = badge(card, answer)
            texts[f"on/{name}.html"] = _page(url, name, model, card, plan, answer)
            cells.append(
                f'<td class="left how {answer["state"]}">'
                f'<a href="{name}.html">{short(answer)}</a></td>'
            )
        rows.append(
            f'<tr><th scope="row">{escape(published.product(model))}</th>{"".join(cells)}</tr>'
        )
    heads = "".join(f'<th scope="col">{escape(card)}</th>' for card in MACHINES)
    about = (
        f"Tokens per second of {len(MODELS)} models on {len(MACHINES)} cards with {RAM} GiB of RAM."
    )
    table = (
        f'<thead><tr><th scope="col">Model</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody>'
    )
    links = []
    for machine, (known, answered) in lists.items():
        name = best_name(machine)
        texts[f"on/{name}.html"], texts[f"on/{name}.svg"] = _best(url, name, known, answered)
        told = escape(_machine_of(known["question"]))
        links.append(f'<li><a href="{quote(name)}.html">{told}</a></li>')
    body = f'<p>{about}</p><div class="scroll"><table>{table}</table></div>'
    if links:
        body += f"<h2>The best models for a machine</h2><ul>{''.join(links)}</ul>"
    texts["on/index.html"] = _document(
        url, "on/", "Which model runs on which graphics card?", about, body, "on/index"
    )
    # the picture of a link to the page itself, which says nothing of a model: what stands behind
    # the # reaches no preview
    lines = ("Does this model run on that machine,", "how fast, and with which command?")
    drawn = [
        _text(170, 64, INK, "autolayers", 700),
        *(_text(280 + 70 * i, 52, INK, line) for i, line in enumerate(lines)),
        _text(470, 36, SOFT, "Any GGUF model, any graphics card, in the browser."),
    ]
    texts["on/index.svg"] = _PICTURE.substitute(
        label=escape(" ".join(lines)), drawn="\n".join(drawn), mark=MARK, paper=PAPER, soft=SOFT
    )
    # Addresses as people link them: "on/" and not "on/index.html"
    places = [
        "",
        *(name.removesuffix("index.html") for name in sorted(texts) if name.endswith(".html")),
    ]
    texts["sitemap.xml"] = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
        + "".join(f"<url><loc>{escape(f'{url}/{place}')}</loc></url>\n" for place in places)
        + "</urlset>\n"
    )
    texts["robots.txt"] = f"User-agent: *\nAllow: /\nSitemap: {url}/sitemap.xml\n"
    return {name: text.encode() for name, text in texts.items()}


def picture(plan: Plan, model: str, card: str, answer: dict[str, Any]) -> str:
    """Return a picture of 1200 x 630, as previews of links want it."""
    parts = answer["parts"]
    # The last part, where the model is, gets a line of its own
    lines = [answer["title"], *([", ".join(parts[:-1]), parts[-1]] if parts else [])]
    drawn = [
        _text(110, 46, INK, published.product(model), 700),
        _text(170, 36, SOFT, f"{CARDS[card].description}, {RAM} GiB of RAM"),
    ]
    drawn += [
        _text(265 + 62 * i, 44 if i else 54, COLOURS[answer["state"]], line, 400 if i else 700)
        for i, line in enumerate(lines)
    ]
    for i, (name, whole, pieces) in enumerate(_bars(plan)):
        y = 440 + 80 * i
        drawn += [_text(y + 32, 30, INK, name), _rect(LEFT, y, BAR, FREE)]
        # Pieces side by side, cut off where the bar ends
        x = float(LEFT)
        for size, colour in pieces:
            width = max(0.0, min(BAR * size / whole, LEFT + BAR - x))
            drawn.append(_rect(x, y, width, colour))
            x += width
    return _PICTURE.substitute(
        label=escape(" ".join(lines)), drawn="\n".join(drawn), mark=MARK, paper=PAPER, soft=SOFT
    )


def best_name(machine: str) -> str:
    """Return the name of a machine's page; copying.js has it too."""
    return f"best-{machine.replace(',', '+')}"


def _machine_of(question: dict[str, str]) -> str:
    return machine_words(request_of({"gpu": question["gpu"], "ram": question["ram"]}))


def _best(url: str, name: str, known: dict[str, Any], answered: dict[str, Any]) -> tuple[str, str]:
    """Return the page of a machine's list, and its picture: the first three that run."""
    question = known["question"]
    machine = _machine_of(question)
    runs = [row for row in known["rows"] if row["how"] != "no"]
    rows, drawn = [], [_text(110, 46, INK, "The best models for", 700)]
    drawn.append(_text(170, 36, SOFT, machine))
    for row in runs:
        cells = (rate(row["rate"]), f"{row['context']:,}", f"{row['size'] / GiB:.1f}")
        title = f"{row['title']} {row['quantisation']}"
        told = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        where = f'<td class="left how {row["state"]}">{escape(row["where"])}</td>'
        rows.append(f'<tr><th scope="row">{escape(title)}</th>{told}{where}</tr>')
    for i, row in enumerate(runs[:3]):
        line = f"{row['title']}: {rate(row['rate'])} tokens/s, {row['context'] >> 10}k context"
        drawn.append(_text(270 + 90 * i, 34, COLOURS[row["state"]], line, 400 if i else 700))
    first = _told(answered)
    body = _BEST.substitute(
        first=escape(first),
        command=escape(answered["answer"]["command"]["bash"]),
        gpu=quote(question["gpu"]),
        ram=quote(question["ram"]),
        rows="".join(rows),
        build=NEWEST,
        date=_today(),
    )
    title = f"The best models for {machine}"
    page = _document(url, f"on/{quote(name)}.html", title, first, body, f"on/{quote(name)}")
    return page, _PICTURE.substitute(
        label=escape(title), drawn="\n".join(drawn), mark=MARK, paper=PAPER, soft=SOFT
    )


def _told(answered: dict[str, Any]) -> str:
    verdict = answered["answer"]["verdict"]
    parts = ". ".join([verdict["title"], *verdict["parts"]])
    return f"{published.product(answered['question']['model'])}: {parts}."


def first_words(first: dict[str, Any]) -> str:
    """Return the answer to the preset as text, for the page itself."""
    command = escape(first["answer"]["command"]["bash"])
    told = f"The best model for {_machine_of(first['asked'])} is {_told(first)}"
    return f"<p>{escape(told)}</p><pre><code>{command}</code></pre>"


def _text(y: int, size: int, colour: str, text: str, weight: int = 400) -> str:
    return (
        f'<text x="60" y="{y}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _rect(x: float, y: int, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="46" fill="{colour}"/>'


def badge(card: str, answer: dict[str, Any]) -> str:
    """Return a badge for a model card: the GPU, and how the model runs on it."""
    left, right = card, short(answer)
    # 7 pixels a character of 11 px Verdana, and a margin
    at, rest = (14 + 7 * len(text) for text in (left, right))
    return _BADGE.substitute(
        total=at + rest,
        at=at,
        rest=rest,
        colour=COLOURS[answer["state"]],
        one=at / 2,
        two=at + rest / 2,
        left=escape(left),
        right=escape(right),
        label=escape(f"{left}: {right}"),
    )


def _today() -> str:
    """Return the day of the build; SOURCE_DATE_EPOCH, of repeatable builds, overrides it."""
    return strftime("%Y-%m-%d", gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time())))


def short(answer: dict[str, Any]) -> str:
    """Return a verdict in two words."""
    return f"~{rate(answer['rate'])} tokens/s" if answer["rate"] else "does not fit"


def _bars(plan: Plan) -> Iterator[tuple[str, int, list[tuple[int, str]]]]:
    # These pages are of machines with one GPU
    for device in plan.devices[:1]:
        parts = [(getattr(device, part), shade(GPU, part)) for part in SHADES]
        yield "GPU", device.free, [*parts, (device.margin, MARGIN)]
    host = plan.host
    title = f"RAM, +{host.growing / GiB:.0f} saved" if host.growing else "RAM"
    yield (
        title,
        host.free or host.needed,
        [
            (host.resident, RAM_COLOUR),
            (host.growing, shade(RAM_COLOUR, "extra")),
            (host.margin, MARGIN),
        ],
    )


def _page(url: str, name: str, model: str, card: str, plan: Plan, answer: dict[str, Any]) -> str:
    parts = answer["parts"]
    sentence = (
        ". ".join([answer["title"], *([", ".join(parts[:-1]), parts[-1]] if parts else [])]) + "."
    )
    rows = [
        (row.description, f"{row.used / GiB:.2f} of {row.free / GiB:.2f} GiB")
        for row in plan.devices
    ]
    # As the terminal and the page say it: what saved prompts may add has a row of its own
    ram = plan.host.resident + plan.host.shared
    rows.append(("RAM", f"{ram / GiB:.2f} of {(plan.host.free or 0) / GiB:.2f} GiB"))
    if plan.host.growing:
        rows.append(("RAM that saved prompts may add", f"up to {plan.host.growing / GiB:.2f} GiB"))
    if plan.fits:
        rows += [
            ("Tokens per second", rate(plan.speed.generation)),
            ("Prompt tokens per second", rate(plan.speed.prompt)),
            ("Context", f"{plan.breakdown.n_ctx:,}"),
        ]
    body = _ANSWER.substitute(
        state=answer["state"],
        sentence=escape(sentence),
        plain=escape(answer["plain"]),
        name=name,
        card=quote(card),
        model=quote(model),
        ram=RAM,
        placement=escape(plan.placement),
        assumed=escape(answer["assumed"]),
        build=NEWEST,
        date=_today(),
        exact="Memory is exact to the byte." if plan.exact else "Memory is an upper bound.",
        command=escape(
            posix(
                [
                    "llama-server",
                    *(published.download(model) or ("-m", f"{model}.gguf")),
                    *plan.flags,
                ]
            )
        ),
        rows="".join(
            f'<tr><th scope="row">{escape(title)}</th><td>{escape(value)}</td></tr>'
            for title, value in rows
        ),
    )
    title = (
        f"{published.product(model)} on {CARDS[card].description} with {RAM} GB of RAM: does it "
        f"run?"
    )
    return _document(
        url,
        f"on/{name}.html",
        title,
        f"{sentence} With {RAM} GB of RAM. {answer['plain']}",
        body,
        f"on/{name}",
    )


def _document(url: str, place: str, title: str, about: str, body: str, image: str = "") -> str:
    """Return the page; .IMAGE stands for the ending that its picture has."""
    return _DOCUMENT.substitute(
        url=url,
        place=place,
        title=escape(title),
        about=escape(about),
        body=body,
        image=_IMAGE.substitute(url=url, image=image) if image else "",
    )
