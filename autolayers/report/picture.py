"""A plan's memory and layers, drawn with characters: a bar for each device, and a character for
each layer."""

from __future__ import annotations

from itertools import groupby

from ..tables import listed
from ..units import GiB
from .table import Style, blocks, shortened, table, widths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..planner.plan import DeviceRow, HostRow, LayerRow, Plan

# Parts of a device's memory: head of the column, its mark in a bar (plain, and of a Unicode
# terminal), and the field of a row
PARTS = (
    ("weights", "#", "\u2588", "model"),
    ("KV", "=", "\u2593", "context"),
    ("compute", "+", "\u2592", "compute"),
    ("extra", "x", "\u259e", "extra"),
    ("GPU's", "g", "\u259a", "shared"),
    ("grows", "~", "~", "growing"),
    ("margin", ":", "\u2591", "margin"),
    ("free", ".", "\u00b7", "remaining"),
)
# columns that are shown although all are 0
_ALWAYS = frozenset(("weights", "KV", "compute", "margin", "free"))
_BAR = 10, 40  # columns of a bar, at least and at most
_DECORATIONS = listed("nvidia geforce amd radeon radeon(tm) intel(r) arc(tm) graphics hypothetical")
FULL, HALF = "\u2588", "\u2584"
LETTERS = "ABCDEFGHIJKLMNOP"  # of devices
ALIKE = 3  # identical GPUs with the same free memory that share a row
_SHOWN = GiB // 20  # less is 0.0 GiB


def memory(plan: Plan, style: Style, verbose: bool) -> list[str]:
    """Return a table in GiB with a bar for each device, whose marks stand in the head. Without room
    for bars, or where nothing is drawn, the table alone: a bar never takes the room of a part that
    is there."""
    # Eight equal GPUs are a row, of the fullest one
    groups = grouped(plan.devices, verbose)
    devices = [min(group, key=lambda device: device.remaining) for group in groups]
    rows = [*map(held, devices), held(plan.host)]
    # Columns in which nobody has anything are left out, except the usual ones
    shown = [
        i
        for i, (head, *_) in enumerate(PARTS)
        if head in _ALWAYS or any(row[i] >= _SHOWN for row in rows)
    ]
    room = max(12, style.width // 4)
    titles = [shortened(text, room) for text in [*map(name, groups), "RAM"]]
    cells = [[f"{row[i] / GiB:.1f}" for i in shown] for row in rows]
    # The last figure is what is free, and of how much
    for texts, limit in zip(cells, [*(row.free for row in devices), plan.host.free], strict=True):
        texts[-1] = "" if limit is None else f"{texts[-1]} of {limit / GiB:.1f}"
    heads = [f"{PARTS[i][0]} {mark(i, style)}" for i in shown]
    # The bar gets the columns that names and figures leave
    left = max(map(len, titles))
    width = min(_BAR[1], style.width - left - sum(widths(heads, *cells)) - 2 * len(heads) - 4)
    if not style.drawn or width < _BAR[0]:
        named = [[title, *texts] for title, texts in zip(titles, cells, strict=True)]
        return blocks(["GiB", *(PARTS[i][0] for i in shown)], named, style)
    # Each head has its mark, so that no legend is needed
    first, *lines = table(heads, cells, style, ())
    left = max(left, len("GiB"))
    drawn = [f"{style('GiB'.ljust(left), 'dim')}  {' ' * (width + 2)}  {first}"]
    for title, row, line in zip(titles, rows, lines, strict=True):
        # What has no column is 0.0 GiB, and gets no cell of the bar
        # The columns of each part: those that its share rounds to, and at least one
        sizes = [row[i] * (i in shown) for i in range(len(row))]
        # What is missing (a negative rest) has no columns
        total = sum(max(0, size) for size in sizes)
        if not total:
            bar = " " * (width + 2)
        else:
            shares = [max(0, size) * width / total for size in sizes]
            # At least one column each, so that no part is invisible
            counts = [max(1, int(share)) if share else 0 for share in shares]
            # One column after another, where it is the least wrong
            while sum(counts) != width:
                step = 1 if sum(counts) < width else -1
                able = [i for i, count in enumerate(counts) if shares[i] and count + step > 0]
                # More parts than columns
                if not able:
                    break
                at = max(able, key=lambda i: step * (shares[i] - counts[i]))
                counts[at] += step
            bar = f"|{''.join(mark(i, style) * count for i, count in enumerate(counts))}|"
        drawn.append(f"{title.ljust(left)}  {bar}  {line}")
    return drawn


def held(row: DeviceRow | HostRow) -> list[int]:
    """Return the bytes of each of the PARTS; what only RAM has is 0 of a device."""
    return [getattr(row, field, 0) or 0 for *_, field in PARTS]


def layers(plan: Plan, style: Style) -> tuple[list[str], str]:
    """Return a character for each layer: A, B, ... by device (# if there is one), in small letters
    (o) with weights in RAM, and a dot on the CPU; and what they stand for. With blocks one device's
    are full, or half with weights in RAM."""
    # The input layer is a table in RAM with nearly every launch
    rows = [row for row in plan.layers if row.name != "input"]
    # With -sm tensor each layer is on all devices
    if not style.drawn or not rows or plan.params.split_mode == "tensor":
        return [], ""
    gpus = {device.name for device in plan.devices}
    devices = list(dict.fromkeys(row.device for row in rows if row.device in gpus))
    # One device needs no letter
    alone = len(devices) == 1
    whole, part = LETTERS, LETTERS.lower()
    if alone:
        whole, part = (FULL, HALF) if style.blocks else ("#", "o")
    # More devices than letters: the placement in words says it
    if len(devices) > len(whole):
        return [], ""
    drawn = "".join([_layer(row, devices, whole, part) for row in rows])
    room = style.width - 10
    lines = [drawn[at : at + room] for at in range(0, len(drawn), room)]
    # "A CUDA0", "B CUDA1", or "A-G CUDA0-6" for three and more
    meaning = [f"{letter} {device}" for letter, device in zip(whole, devices, strict=False)]
    ranges = in_ranges(devices)
    if len(ranges) == 1 < len(devices):
        meaning = [f"{whole[0]}-{whole[len(devices) - 1]} {ranges[0]}"]
    # The bar of a device alone has its name
    meaning = [] if alone and style.blocks else meaning
    if any(letter in drawn for letter in part):
        meaning.append(f"{part if alone else 'small letters'} partly in RAM")
    if "." in drawn:
        meaning.append(". on the CPU")
    return lines, "  ".join(meaning)


def _layer(row: LayerRow, devices: Sequence[str], whole: str, part: str) -> str:
    if row.device not in devices:
        return "."
    # Weights in another buffer than a GPU's: RAM, e.g. experts
    elsewhere = any(size and buffer not in devices for buffer, size in row.buffers.items())
    return (part if elsewhere else whole)[devices.index(row.device)]


def machine_of(cards: Sequence[str], ram: int | None, shared: bool) -> str:
    """Return a machine in a few words: "2 x RTX 3060 12 GB + 32 GB RAM"."""
    counts = {card: cards.count(card) for card in cards}
    parts = [f"{n} x {card}" if n > 1 else card for card, n in counts.items()] or ["the CPU"]
    if ram is not None:
        parts.append(f"{ram / GiB:.0f} GB {'memory' if shared else 'RAM'}")
    return " + ".join(parts)


def filled(size: int, limit: int | None) -> str:
    """Return what is held, and of how much where that is known."""
    of = "" if limit is None else f" of {limit / GiB:.1f}"
    return f"{size / GiB:.1f}{of} GiB"


def in_ranges(devices: Sequence[str]) -> list[str]:
    """Return three or more neighbours as one, "CUDA0-7"; other names as they are."""
    runs: list[list[str]] = []
    for device in devices:
        kind, number = _numbered(device)
        # 0 is nobody's successor: "CUDA0" after "Vulkan0" begins a new run
        if runs and number and (kind, number - 1) == _numbered(runs[-1][-1]):
            runs[-1].append(device)
        else:
            runs.append([device])
    ranges: list[str] = []
    for run in runs:
        # "CUDA0, CUDA1" is as short as "CUDA0-1", and clearer
        ranges += run if len(run) < 3 else [f"{run[0]}-{_numbered(run[-1])[1]}"]
    return ranges


def _numbered(name: str) -> tuple[str, int | None]:
    """Return a device's name without its number, and the number: ("CUDA", 0)."""
    kind = name.rstrip("0123456789")
    return kind, int(name[len(kind) :]) if len(kind) < len(name) else None


def placed(line: str, style: Style) -> str:
    """Return a line of layers in the colours of their places."""
    whole = f"{LETTERS}{FULL}#"
    runs = groupby(line, key=lambda mark: mark in whole)
    return "".join(style("".join(marks), "gpu" if on_gpu else "ram") for on_gpu, marks in runs)


def grouped(devices: Sequence[DeviceRow], verbose: bool) -> list[list[DeviceRow]]:
    """Return neighbours that share a row: identical GPUs with the same free memory."""

    def kind(device: DeviceRow) -> tuple[str, int, int, bool]:
        # A device that is not used is no twin of one that is
        return device.description, device.total, device.free, bool(device.used)

    groups: list[list[DeviceRow]] = []
    for alike in [list(group) for _, group in groupby(devices, key=kind)]:
        # Two GPUs have a row each
        share = len(alike) >= ALIKE and not verbose
        groups += [alike] if share else [[device] for device in alike]
    return groups


def name(group: Sequence[DeviceRow]) -> str:
    """Return "CUDA0-3 RTX 3090": without what the maker adds."""
    words = [word for word in group[0].description.split() if word.lower() not in _DECORATIONS]
    return " ".join([names(group), *words])


def names(group: Sequence[DeviceRow]) -> str:
    """Return "CUDA0", or "CUDA0-3"."""
    first, last = group[0].name, group[-1].name
    # "CUDA0" and "CUDA3" are "CUDA0-3"
    return first if first == last else f"{first}-{last[len(last.rstrip('0123456789')) :]}"


def mark(i: int, style: Style) -> str:
    """Return what a part is drawn with."""
    return PARTS[i][2 if style.blocks else 1]
