"""Fits the constants of the speed prediction to measured launches: python benchmarks/fit_speed.py
[--write]

Prints how far predictions are off by class, once with all rows known (fitted) and once with each
row predicted by constants that were fitted without its source; --docs keeps those tables in
docs/speeds.md. --write puts the constants into autolayers/work (rates.csv, doubts.csv and
rates.py), and --rows FILE adds rows, such as `autolayers tune --share` writes. --only ROCm,SYCL
fits the constants of these backends alone, to their rows, --only CUDA/Hopper those of a generation,
--fields copied,ram_copy those of these names, --fields age what older builds were slower: all
others stay as they are.

Least squares on log(predicted / measured) with Huber's loss; a source of n rows weighs as sqrt(n).
A generation's constants are drawn to those of its backend, and those to the start values, so that
few rows move them little. What only describes the rows is fitted with them and then left out: RAM
where a source does not say its speed, and what builds of 2024 were slower.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import multiprocessing
import pickle
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy
import speeds_page

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from speed_rows import machine_of  # noqa: E402

import autolayers  # noqa: E402
from autolayers.backends import canonical  # noqa: E402
from autolayers.flags.policy import read  # noqa: E402
from autolayers.launch.speed_rows import check  # noqa: E402
from autolayers.machine import CLASSES, OF_PEAK, Ratio  # noqa: E402
from autolayers.model import Model  # noqa: E402
from autolayers.planner.evaluate import Evaluator  # noqa: E402
from autolayers.records import replace  # noqa: E402
from autolayers.work import rates as speeds  # noqa: E402
from autolayers.work.calibration import Calibration  # noqa: E402
from autolayers.work.clock import Clock  # noqa: E402
from autolayers.work.speed import IN_RAM  # noqa: E402

MADE = "# made by benchmarks/fit_speed.py"
ROWS = ROOT / "fixtures" / "speeds" / "speeds.jsonl"
MODELS = [
    ROOT / "fixtures" / folder
    for folder in ("headers", "speeds/models", "more/headers", "real/headers")
]
FIELDS = (
    "read",
    "cache",
    "kernel",
    "matmul",
    "attention",
    "handover",
    "quantised",
    "bf16",
    "experts",
    "bf16_experts",
    "chosen",
    "launch",
    "tile",
)
MOST = {
    "read": 0.95,
    "cache": 0.95,
    "quantised": 1.0,
    "bf16": 1.2,
    "ram": 1.0,
    "ram_experts": 1.0,
    "ram_copy": 1.0,
    "experts": 1.0,
    "prompt_read": 1.0,
    "stages": 1.0,
    "bf16_experts": 1.0,
    "chosen": 1.0,
    "alone": 1.0,
}
# The one machine of Gen9 saved power under Windows; two sockets and cores of unequal speed say
# little of what one processor's RAM reaches
# say little of what one processor's RAM reaches; ROCm's rows of August 2025 on Strix Halo are of
# kernels a quarter as fast as those since (three machines)
LEAST = {
    ("rates", ("Vulkan", "Gen9"), "read"): 0.58,
    ("shared", "alone"): 0.8,
    ("rates", ("ROCm", "Strix Halo"), "matmul"): 0.28,
}
# How far a constant may be from where it starts, as a factor of e: of a generation from its
# backend, of others at all
WIDTH = {
    "read": 0.15,
    "cache": 0.25,
    "kernel": 0.25,
    "matmul": 0.4,
    "attention": 0.5,
    "handover": 0.3,
    "quantised": 0.3,
    "bf16": 0.3,
    "experts": 0.3,
    "bf16_experts": 0.3,
    "chosen": 0.15,
    "launch": 0.3,
    "tile": 0.2,
}
BACKEND_WIDTH = 0.3
BACKEND_WIDTHS = {"launch": 0.6, "tile": 0.6}
SHARED_WIDTH = 0.25
# of what reading RAM reaches: machines whose RAM is not known must not move it
RAM_WIDTH = 0.05
OLD = {"kernel": 2.1, "prompt": 0.8}  # builds of 2024, of today's
AGED = ("kernel", "prompt", "experts")
# Builds of a time, and the first month after it: fitted by backend, drawn to no difference
AGES = ((6700, "2025-10"), (8400, "2026-04"))
FLASH_MONTH = "2026-02"
AGE_WIDTH = {"kernel": 0.06, "prompt": 0.06, "experts": 0.12}  # kernels of experts changed most
# with today's constants known (--fields age, after a fit of all): together, ages would take what
# sources differ in
AGE_ALONE = 4.0
# prompts of older builds: what was faster than today had other build options
AGE_MOST = 1.1
ROUNDS, ROUNDS_WITHOUT = 12, 6  # steps of a fit, and of one without a source
ENOUGH = 0.02  # a step that gains less ends a fit
FEW = 10  # comparisons that count
# sources that all classes' uncertainty counts as in each class's
ALL = 4
# sources that a class needs on a backend for a doubt of its own, and that its doubt counts as there
SEVERAL = 3
FEW_SOURCES = 2  # of a GPU's generation, besides a row's own: fewer are less sure
UNSEEN = 0.25  # of a source: how much the next one counts where a doubt is stated
POWER = 0.25  # n rows of a source weigh as n ** (1 - 2 * POWER)
ERROR = 0.12  # of a row whose model is right


@dataclass
class Row:
    """One measured launch, ready to be predicted with any constants."""

    source: str
    kind: str
    clock: Clock
    keys: tuple[tuple[str, str], ...]
    work: dict[str, int]
    measured: float
    old: bool
    ram: str  # of a machine that does not say its RAM's speed
    bus: str  # or its bus's
    shared: frozenset[str]  # devices whose memory that RAM is
    label: str
    placement: str
    group: str  # rows that differ in their launch alone
    words: str
    machine: str
    age: int  # of AGES, their number: today's builds
    others: int = 99  # sources of its GPUs besides its own: of the one with fewest

    @property
    def backends(self) -> set[str]:
        return {key[0] for key in self.keys}


def checked(path: Path) -> Iterator[dict]:
    """The rows of a file that may come from anyone. Ends the program at one that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {getattr(error, 'strerror', None) or error}")
    seen = set()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            sys.exit(f"{path}:{number}: not JSON ({error})")
        wrong = check(row) or (f"a second row {row['id']}" if row["id"] in seen else "")
        if wrong:
            sys.exit(f"{path}:{number}: {wrong}")
        seen.add(row["id"])
        yield row


def counts(data: dict, only: frozenset[str]) -> bool:
    """Whether a row is fitted: measured by llama-bench or a server, with a model that fits in RAM,
    and of one of these backends where some are named."""
    if data["quality"] not in ("llama-bench", "server") or data.get("disk_bound"):
        return False
    backends = {canonical(device["backend"]) for device in data["machine"]["devices"]}
    return not only or bool(backends & {name.partition("/")[0] for name in only})


def among(key: tuple[str, str], only: frozenset[str]) -> bool:
    """Whether a backend's or a generation's constants are those of `only`."""
    return key[0] in only or "/".join(key) in only


def load(paths: list[Path], only: frozenset[str] = frozenset()) -> list[Row]:
    """The rows that count. Ends the program at a row that is wrong."""
    models: dict[str, Model] = {}
    return [
        launch_of(path, data, models)
        for path in paths
        for data in checked(path)
        if counts(data, only)
    ]


def launch_of(path: Path, data: dict, models: dict[str, Model]) -> Row:
    """A row with its graphs, which take a twentieth of a second; `models` are those read so far."""
    if data["model"] not in models:
        file = next(
            (p for folder in MODELS if (p := folder / f"{data['model']}.gguf").exists()), None
        )
        if file is None:
            sys.exit(
                f"{path}: {data['id']}: no header {data['model']}.gguf in fixtures/speeds/models"
            )
        models[data["model"]] = autolayers.read_model(file)
    params, _ = read(data["words"], None)
    evaluator = Evaluator.of(models[data["model"]], machine_of(data["machine"]))
    cost = evaluator.cost()
    clock = cost.clock(params, evaluator.static(params))
    clock.missing = 0.0
    if flash_is_old(data):
        clock.host = replace(clock.host, flash=speeds.OLD_FLASH)
    keys = tuple(
        (device.backend, speeds.row_of(device))
        for device in evaluator.machine.devices
        if device.name in clock.devices
    )
    machine, work = data["machine"], data["workload"]
    whose = f"{data['source']} {json.dumps(machine)}"
    ram = (
        ""
        if cost.host.known
        else f"{data['source']} {machine['cpu']['model']} {machine['ram']['total']}"
    )
    label = (
        f"{data['id']} {data['model']} {'+'.join(d['card'] for d in machine['devices'])} "
        f"{' '.join(data['words'])[:70]} "
        f"{work['prompt']}+{work['generate']}@{work['depth']}"
    )
    shared = frozenset(
        device.name
        for device in evaluator.machine.devices
        if device.in_ram and not device.bandwidth
    )
    return Row(
        data["source"],
        data["kind"],
        clock,
        keys,
        work,
        data["measured"],
        data["date"] < "2025",
        ram,
        "" if machine["bus"]["known"] else f"bus of {whose}",
        shared,
        label,
        data["class"],
        data["group"],
        " ".join(data["words"]),
        whose,
        age_of(data),
    )


def digest() -> str:
    """Of what rows are made by: the models, this script and the package, without the constants that
    a fit writes."""
    digested = hashlib.sha256()
    for path in [Path(__file__), *sorted((ROOT / "autolayers").rglob("*.py"))]:
        text = path.read_text(encoding="utf-8")
        if path.name == "rates.py":
            text = text.partition("# --- made by")[0] + text.partition("# --- end")[2]
        digested.update(text.encode())
    for path in [path for folder in MODELS for path in sorted(folder.glob("*.gguf"))]:
        digested.update(f"{path.name} {path.stat().st_size}".encode())
    return digested.hexdigest()[:16]


def loaded(paths: list[Path], only: frozenset[str] = frozenset()) -> list[Row]:
    """As load. Rows are kept from the last time that the code was the same: the graphs of all take
    a minute, those of a new one no time."""
    file = ROOT / ".cache" / f"rows-{digest()}.pickle"
    known: dict[str, Row] = pickle.loads(file.read_bytes()) if file.exists() else {}
    count = len(known)
    models: dict[str, Model] = {}
    rows = []
    for path in paths:
        for data in checked(path):
            if counts(data, only):
                line = json.dumps(data)
                if line not in known:
                    known[line] = launch_of(path, data, models)
                rows.append(known[line])
    if len(known) > count:
        file.parent.mkdir(exist_ok=True)
        for old in file.parent.glob("rows-*.pickle"):
            old.unlink()
        file.write_bytes(pickle.dumps(known))
    return rows


def build_of(data: dict) -> int | None:
    """The number of a row's build, if it or its note has one."""
    found = re.search(r"\bb(\d{4,5})\b", data["note"])
    return data.get("build") or (int(found[1]) if found else None)


def flash_is_old(data: dict) -> bool:
    """Whether a row's build has the CPU's former flash attention, by its number if that is
    known."""
    number = build_of(data)
    # of a year alone, its last month
    return number < speeds.FLASH_BUILD if number else data["date"].ljust(7, "~") < FLASH_MONTH


def age_of(data: dict) -> int:
    """The time of a row's build, by its number if that is known."""
    number = build_of(data)
    return next(
        (
            i
            for i, (build, month) in enumerate(AGES)
            if (number < build if number else data["date"] < month)
        ),
        len(AGES),
    )


class Constants:
    """All constants as logarithms in one vector, with where each is drawn to."""

    def __init__(self, rows: list[Row]) -> None:
        self.names: list[tuple] = []
        self.start: list[float] = []
        self.width: list[float] = []
        self.parent: dict[int, int] = {}
        keys = sorted({key for row in rows for key in row.keys})
        backends = sorted({key[0] for key in keys})
        for backend in backends:
            for field in FIELDS:
                self._add(
                    ("rates", (backend, ""), field),
                    getattr(START[backend], field),
                    BACKEND_WIDTHS.get(field, BACKEND_WIDTH),
                )
        for key in keys:
            if key[1]:
                for field in FIELDS:
                    first = getattr(START.get(key, START[key[0]]), field)
                    parent = self.names.index(("rates", (key[0], ""), field))
                    self.parent[len(self.names)] = parent
                    self._add(("rates", key, field), first, WIDTH[field])
        for field in speeds.Shared.__record_fields__:
            width = RAM_WIDTH if field in ("ram", "ram_experts") else SHARED_WIDTH
            self._add(("shared", field), getattr(SHARED, field), width)
        for field, value in OLD.items():
            self._add(("old", field), value, 0.3)
        for backend in backends:
            for age in range(len(AGES)):
                for field in AGED:
                    self._add(("age", (backend, age), field), 1.0, AGE_WIDTH[field])
        for machine in sorted({row.ram for row in rows if row.ram}):
            self._add(("ram", machine), 38.0, 0.4)
        for machine, bus in sorted({(row.bus, row.clock.host.bus) for row in rows if row.bus}):
            self._add(("bus", machine), bus / 1e9, 0.4)
        self.x0 = numpy.log(numpy.array(self.start))
        self.most = numpy.log(
            [
                AGE_MOST if name[0] == "age" and name[2] != "kernel" else MOST.get(name[-1], 1e9)
                for name in self.names
            ]
        )
        self.least = numpy.log([LEAST.get(name, 1e-9) for name in self.names])

    def _add(self, name: tuple, value: float, width: float) -> None:
        self.names.append(name)
        self.start.append(value)
        self.width.append(width)

    def known(self) -> dict[tuple, float]:
        """The logarithms of those that the package has, by name."""
        found = {("shared", field): value for field, value in vars(speeds.SHARED).items()}
        for backend, ages in speeds.AGES.items():
            for i, age in enumerate(ages):
                found |= {("age", (backend, i), field): getattr(age, field) for field in AGED}
        for kind, key, *field in self.names:
            if kind == "rates":
                rates = (
                    speeds.RATES.get(key) or speeds.RATES.get((key[0], "")) or speeds.RATES["", ""]
                )
                found[kind, key, field[0]] = getattr(rates, field[0])
        return {name: math.log(value) for name, value in found.items()}

    def tables(self, x: numpy.ndarray) -> tuple[dict, speeds.Shared, dict, dict]:
        """Rates, what is shared, old: of 2024 by name, of AGES by (backend, age, name); RAM by
        machine."""
        values = numpy.exp(x)
        rates: dict = defaultdict(dict)
        shared, old, ram = {}, {}, {}
        for name, value in zip(self.names, values, strict=True):
            value = float(value)
            if name[0] == "rates":
                rates[name[1]][name[2]] = value
            elif name[0] == "age":
                old[(*name[1], name[2])] = value
            else:
                {"shared": shared, "old": old, "ram": ram, "bus": ram}[name[0]][name[1]] = value
        return (
            {key: speeds.Rates(**fields) for key, fields in rates.items()},
            speeds.Shared(**shared),
            old,
            ram,
        )

    def prior(self, x: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Residuals of the constants themselves, and their derivatives."""
        residuals, jacobian = [], []
        for i in range(len(self.names)):
            row = numpy.zeros(len(x))
            row[i] = 1 / self.width[i]
            value = x[i] - self.x0[i]
            if i in self.parent:
                value -= x[self.parent[i]] - self.x0[self.parent[i]]
                row[self.parent[i]] = -1 / self.width[i]
            residuals.append(value / self.width[i])
            jacobian.append(row)
        return numpy.array(residuals), numpy.array(jacobian)

    def touches(self, name: tuple, row: Row) -> bool:
        if name[0] == "rates":
            return name[1] in row.keys
        if name[0] == "age":
            return (
                not row.old
                and row.age == name[1][1]
                and any(name[1][0] == key[0] for key in row.keys)
            )
        if name[0] in ("ram", "bus"):
            return name[1] == (row.ram if name[0] == "ram" else row.bus)
        return (name[0] == "old" and row.old) or name[0] == "shared"


def predict(
    row: Row, rates: dict, shared: speeds.Shared, old: dict, ram: dict, plain: bool = False
) -> float:
    """Tokens per second. `plain`: as a plan would, without what is fitted for the row alone."""
    clock = row.clock
    aged = row.old and not plain
    figures = {}
    for (name, device), key in zip(clock.devices.items(), row.keys, strict=True):
        rate = rates.get(key) or rates.get((key[0], "")) or START[key[0]]
        if aged:
            rate = replace(rate, kernel=rate.kernel * old["kernel"])
        elif not row.old and row.age < len(AGES):
            rate = replace(
                rate,
                kernel=rate.kernel * old.get((key[0], row.age, "kernel"), 1.0),
                matmul=rate.matmul * old.get((key[0], row.age, "prompt"), 1.0),
                experts=rate.experts * old.get((key[0], row.age, "experts"), 1.0),
            )
        figures[name] = replace(device, rates=rate)
        if name in row.shared and row.ram in ram and not plain:
            figures[name] = replace(figures[name], bandwidth=ram[row.ram] * 1e9 / OF_PEAK)
    before = clock.devices, clock.host, clock.shared, clock.pipelined
    clock.devices, clock.shared = figures, replace(shared, several=1.0) if aged else shared
    if row.ram in ram and not plain:
        clock.host = replace(clock.host, ram=ram[row.ram] * 1e9)
    if row.bus in ram and not plain:
        clock.host = replace(clock.host, bus=ram[row.bus] * 1e9)
    if aged:
        clock.pipelined = False
    try:
        work = row.work
        if row.kind == "pp":
            found = work["prompt"] / clock.prompt(work["prompt"], work["depth"])
            return found * (old["prompt"] if aged else 1.0)
        requests = work.get("requests", 1)
        return requests / clock.token(work["depth"] + work["generate"] / 2, requests)
    finally:
        clock.devices, clock.host, clock.shared, clock.pipelined = before


class Fit:
    """A fit of the constants to rows, by steps of Gauss and Newton. `near`: logarithms to begin at;
    `only`: backends whose constants alone are fitted; `fields`: constants of these names alone;
    `like`: a fit of more rows, whose constants it has."""

    def __init__(
        self,
        rows: list[Row],
        near: dict | None,
        only: frozenset[str],
        fields: frozenset[str],
        like: Fit | None = None,
    ) -> None:
        self.rows = rows
        self.constants = constants = like.constants if like else Constants(rows)
        if "age" in fields:
            names = zip(constants.names, constants.width, strict=True)
            constants.width = [w * AGE_ALONE if name[0] == "age" else w for name, w in names]
        near = {**(constants.known() if only or fields else {}), **(near or {})}

        def moves(name: tuple) -> bool:
            """Whether a constant is fitted."""
            if name[0] in ("ram", "bus") or not (only or fields):
                return True
            if fields:
                return name[-1] in fields or name[0] in fields
            if name[0] == "rates":
                return among(name[1], only)
            return name[0] == "age" and name[1][0] in only

        self.free = numpy.array([moves(name) for name in constants.names])
        names = zip(constants.names, constants.x0, strict=True)
        self.x = numpy.array([near.get(name, first) for name, first in names])
        self.x = numpy.clip(self.x, constants.least, constants.most)
        count = Counter((row.source, row.kind) for row in rows)
        self.weight = numpy.array([count[row.source, row.kind] ** -POWER / ERROR for row in rows])
        self.error = self.errors(self.x)

    def tables(self) -> tuple:
        return self.constants.tables(self.x)

    def errors(self, x: numpy.ndarray, which: list[int] | None = None) -> numpy.ndarray:
        """Logarithms of predicted over measured."""
        tables = self.constants.tables(x)
        rows = self.rows if which is None else [self.rows[i] for i in which]
        return numpy.array([math.log(predict(row, *tables) / row.measured) for row in rows])

    def loss(self, error: numpy.ndarray, x: numpy.ndarray) -> float:
        a = numpy.abs(error * self.weight)
        return float(
            numpy.where(a < 1.5, a * a / 2, 1.5 * a - 1.125).sum()
            + (self.constants.prior(x)[0] ** 2).sum() / 2
        )

    def slopes(self) -> numpy.ndarray:
        """The derivative of each row's error by each constant; inwards of one at its limit."""
        found = numpy.zeros((len(self.rows), len(self.x)))
        for j, name in enumerate(self.constants.names):
            which = [i for i, row in enumerate(self.rows) if self.constants.touches(name, row)]
            if which and self.free[j]:
                moved = self.x.copy()
                moved[j] += 0.02 if moved[j] + 0.02 <= self.constants.most[j] else -0.02
                found[which, j] = (self.errors(moved, which) - self.error[which]) / (
                    moved[j] - self.x[j]
                )
        return found

    def improve(self, rounds: int, slopes: numpy.ndarray | None = None) -> None:
        """At most so many steps; with `slopes` the derivatives are not computed again."""
        constants = self.constants
        damping, best = 0.1, self.loss(self.error, self.x)
        for _ in range(rounds):
            jacobian = self.slopes() if slopes is None else slopes
            a = numpy.abs(self.error * self.weight)
            huber = numpy.where(a < 1.5, 1.0, 1.5 / numpy.maximum(a, 1e-9))
            huber = self.weight * numpy.sqrt(huber)
            prior, slope = constants.prior(self.x)
            left = numpy.vstack([jacobian * huber[:, None], slope])
            right = left.T @ -numpy.concatenate([self.error * huber, prior])
            square = left.T @ left
            gain = 0.0
            for _ in range(5):
                tried = self._step(square + damping * numpy.diag(numpy.diag(square)), right)
                after = self.errors(tried)
                loss = self.loss(after, tried)
                if loss < best:
                    gain = best - loss
                    self.x, self.error, best = tried, after, loss
                    damping /= 3
                    break
                damping *= 4
            if gain < ENOUGH:
                break

    def _step(self, square: numpy.ndarray, right: numpy.ndarray) -> numpy.ndarray:
        """The constants after a step; those at a limit that it would pass stay there."""
        free = self.free.copy()
        while True:
            step = numpy.zeros(len(self.x))
            step[free] = numpy.linalg.solve(square[numpy.ix_(free, free)], right[free])
            tried = self.x + numpy.clip(step, -0.5, 0.5)
            within = numpy.clip(tried, self.constants.least, self.constants.most)
            out = free & (tried != within) & (self.x == within)
            if not out.any():
                return within
            free &= ~out


def fit(
    rows: list[Row],
    only: frozenset[str] = frozenset(),
    fields: frozenset[str] = frozenset(),
) -> tuple[tuple, dict]:
    """The tables that fit these rows, and their logarithms by name."""
    found = Fit(rows, None, only, fields)
    found.improve(ROUNDS)
    return found.tables(), dict(zip(found.constants.names, found.x, strict=True))


def share(factors: numpy.ndarray, most: float) -> str:
    return f"{100 * numpy.mean(factors <= most):.0f} %"


HEAD = ("n", "ratio", "factor", "p80", "within 1.25", "within 1.5")
# tables of docs/speeds.md by speeds_page.py's names, and pairs in order
PAGE: dict[str, list[tuple[str, ...]]] = {}
ORDER: dict[str, tuple[float, int]] = {}


def show(
    title: str, first: str, cells: list[tuple[str, ...]], name: str, head: tuple[str, ...] = HEAD
) -> None:
    """Prints a table, and keeps it for the page."""
    PAGE[name] = cells
    print(f"\n{title}")
    for cell in [(first, *head), *cells]:
        print(
            f"{cell[0]:24}"
            + "".join(
                f"{text:>{max(12, len(name) + 2)}}"
                for text, name in zip(cell[1:], head, strict=True)
            )
        )


def residuals(name: str, logs: list[float]) -> tuple[str, ...]:
    """A row: how many, and how far off: the median of predicted / measured, and factors."""
    factors = numpy.exp(numpy.abs(logs))
    return (
        name,
        str(len(logs)),
        f"{math.exp(numpy.median(logs)):.2f}",
        f"{numpy.median(factors):.2f}",
        f"{numpy.quantile(factors, 0.8):.2f}",
        share(factors, 1.25),
        share(factors, 1.5),
    )


def table(
    title: str, rows: list[Row], predicted: list[float], page: str = ""
) -> dict[tuple[str, str], float]:
    """Shows residuals by class; returns the factor that 8 in 10 rows of each are within."""
    found, cells = {}, []
    backends = sorted({name for row in rows for name in row.backends})
    for kind in ("tg", "pp"):
        for name in (*CLASSES, *backends, "all"):
            logs = [
                math.log(p / row.measured)
                for row, p in zip(rows, predicted, strict=True)
                if row.kind == kind and name in (row.placement, "all", *row.backends)
            ]
            if not logs:
                continue
            found[name, kind] = float(numpy.quantile(numpy.exp(numpy.abs(logs)), 0.8))
            cells.append(residuals(f"{name} {kind}", logs))
    show(title, "class", cells, page)
    return found


def sources(rows: list[Row], predicted: list[float]) -> None:
    """Shows residuals by source."""
    logs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, p in zip(rows, predicted, strict=True):
        logs[row.source.removeprefix("https://"), row.kind].append(math.log(p / row.measured))
    show(
        "Each source, predicted without itself",
        "source",
        [residuals(f"{source} {kind}", values) for (source, kind), values in sorted(logs.items())],
        "sources",
    )


def floors(rows: list[Row], fitted: list[float], left_out: list[float]) -> None:
    """Shows how far sources of one GPU generation, backend and class are from each other: what a
    right constant would still be off by. Beside it how far rows are off that are predicted without
    their source, of those that have another one there and of those that have none."""
    logs = [math.log(p / row.measured) for row, p in zip(rows, fitted, strict=True)]
    offs = [abs(math.log(p / row.measured)) for row, p in zip(rows, left_out, strict=True)]
    alike: dict[tuple, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row, log in zip(rows, logs, strict=True):
        if row.keys:
            alike[row.keys, row.kind, row.placement][row.source].append(log)
    # by how much each row differs from each other source, whose weights are one together; half of
    # the square is the other's
    apart: list[list[tuple[float, float]]] = []
    for row, log in zip(rows, logs, strict=True):
        others = dict(alike[row.keys, row.kind, row.placement])
        others.pop(row.source, None)
        apart.append(
            [
                (
                    float(numpy.median(numpy.abs(numpy.subtract(found, log)))) / math.sqrt(2),
                    1 / len(others),
                )
                for found in others.values()
            ]
        )
    near = math.log(1.25)

    def cell(found: list[tuple[float, float]]) -> tuple[str, str]:
        """The median as a factor, and the share within 1.25."""
        total = sum(weight for _, weight in found)
        within = sum(weight for off, weight in found if off <= near)
        return (
            (f"{quantile(found, 0.5):.2f}", f"{100 * within / total:.0f} %") if found else ("", "")
        )

    cells = []
    for kind in ("tg", "pp"):
        for name in (*CLASSES, *sorted({name for row in rows for name in row.backends}), "all"):
            which = [
                i
                for i, row in enumerate(rows)
                if row.kind == kind and name in (row.placement, "all", *row.backends)
            ]
            own = [i for i in which if apart[i]]
            alone = [i for i in which if not apart[i]]
            cells.append(
                (
                    f"{name} {kind}",
                    str(len(own)),
                    *cell([pair for i in own for pair in apart[i]]),
                    *cell([(offs[i], 1.0) for i in own]),
                    str(len(alone)),
                    *cell([(offs[i], 1.0) for i in alone]),
                )
            )
    head = ("another source", "floor", "1.25", "left out", "1.25", "none", "left out", "1.25")
    show(
        "How far sources of one GPU generation are from each other", "class", cells, "floors", head
    )
    PAGE["at_floor"] = [
        cell(
            [
                pair
                for i, row in enumerate(rows)
                if row.kind == kind
                for pair in apart[i] or [(offs[i], 1.0)]
            ]
        )
        for kind in ("tg", "pp")
    ]


def in_order(rows: list[Row], predicted: list[float]) -> None:
    """Shows which of two launches of a group is predicted faster though it was measured slower, by
    more than 5 %."""
    groups: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    for row, p in zip(rows, predicted, strict=True):
        groups[row.group].append((row, p))
    right, pairs, wrong = Counter(), Counter(), []
    for group in groups.values():
        for (slow, p), (fast, q) in itertools.permutations(group, 2):
            if fast.measured > 1.05 * slow.measured:
                alike = math.isclose(p, q, rel_tol=1e-6)
                pairs[slow.kind] += 1
                right[slow.kind] += 0.5 if alike else q > p
                if alike or p > q:
                    wrong.append(
                        (
                            slow.kind,
                            fast.label.split()[1],
                            fast.words,
                            slow.words,
                            f"{fast.measured / slow.measured - 1:+.1%}",
                            f"{q / p - 1:+.1%}",
                        )
                    )
    ORDER.update((kind, (right[kind], n)) for kind, n in sorted(pairs.items()))
    PAGE["wrong"] = wrong
    shares = ", ".join(f"{kind} {of:g} of {n} ({of / n:.3f})" for kind, (of, n) in ORDER.items())
    print(f"\nPairs in order: {shares}", *("  ".join(cells) for cells in wrong), sep="\n")


def apart(rows: list[Row], predicted: list[float]) -> dict[tuple[str, str], float]:
    """The factor that 8 in 10 comparisons are within, by class: of two launches with one workload
    on one machine, how far the quotient of their predictions is from that of their rates. Not of
    classes with few such launches."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (a, p), (b, q) in itertools.combinations(zip(rows, predicted, strict=True), 2):
        if a.group == b.group and a.placement == b.placement and a.work == b.work:
            found[a.placement, a.kind].append(abs(math.log(p / q * b.measured / a.measured)))
    return {
        key: float(numpy.exp(numpy.quantile(logs, 0.8)))
        for key, logs in found.items()
        if len(logs) >= FEW
    }


def calibrated(
    rows: list[Row], predicted: list[float]
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Shows what one measured run of a machine is worth: each of its rows is once the known one, by
    which the others are corrected. Returns the factor that 8 in 10 rows of each class are within,
    if the known one is of the class, and `one_run`."""
    machines: dict[tuple[str, str], list[tuple[Row, float]]] = defaultdict(list)
    for row, p in zip(rows, predicted, strict=True):
        machines[row.machine, row.kind].append((row, p))
    # (log of predicted / measured, weight): before and after, each row counts once
    same: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    other: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    left: dict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
    runs = one_run(machines)
    for alike in machines.values():
        for (row, p), (known, q) in itertools.permutations(alike, 2):
            ratio = Ratio(known.kind, known.placement, known.measured / q)
            off = math.log(p / row.measured)
            found = same if known.placement == row.placement else other
            after = off + math.log(Calibration([ratio], runs).of(row.placement, row.kind).factor)
            for name in (row.placement, "all"):
                found[name, row.kind].append((off, after, 1 / (len(alike) - 1)))
                if found is same:
                    left[name, row.kind].append((abs(after), 1 / (len(alike) - 1), row.source))
    for title, page, found in (
        ("With one run of the class known", "same", same),
        ("With one run of another class known", "other", other),
    ):
        cells = []
        for kind in ("tg", "pp"):
            for name in (*CLASSES, "all"):
                if found[name, kind]:
                    cells.append(weighted(f"{name} {kind}", found[name, kind]))
        head = (
            "rows",
            "factor before",
            "after",
            "p80 before",
            "after",
            "within 1.25 before",
            "after",
        )
        show(title, "class", cells, page, head)
    return shrunk(left), runs


Alike = dict[tuple[str, str], list[tuple[Row, float]]]  # rows by machine and kind, as predicted


def one_run(machines: Alike) -> dict[tuple[str, str], float]:
    """The part of one run's error that the other launches of its class on the machine share, by
    class: what leaves them the least off; of classes of few machines nearer to that of all."""
    pairs: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    count: Counter = Counter()
    for (_, kind), rows in machines.items():
        for name in CLASSES:
            logs = [math.log(p / row.measured) for row, p in rows if row.placement == name]
            if len(logs) < 2:
                continue
            count[name, kind] += 1
            weight = 1 / (len(logs) - 1) / len(logs) ** (2 * POWER)
            found = [(a, b, weight) for a, b in itertools.permutations(logs, 2)]
            pairs[name, kind] += found
            pairs["all", kind] += found

    def best(found: list[tuple[float, float, float]]) -> float:
        tried = [step / 20 for step in range(21)]
        return min(tried, key=lambda one: sum(w * abs(a - one * b) for a, b, w in found))

    shares = {}
    for kind in ("tg", "pp"):
        every = best(pairs["all", kind])
        for name in CLASSES:
            n = count[name, kind]
            own = best(pairs[name, kind]) if n else 0.0
            shares[name, kind] = (n * own + ALL * every) / (n + ALL)
    return shares


def weighted(name: str, pairs: list[tuple[float, float, float]]) -> tuple[str, ...]:
    """A row: how far predictions are off before and after a correction."""
    cells = [name, f"{sum(w for _, _, w in pairs):.0f}"]
    for q in (0.5, 0.8):
        cells += [f"{quantile([(abs(pair[i]), pair[2]) for pair in pairs], q):.2f}" for i in (0, 1)]
    total = sum(w for _, _, w in pairs)
    near = [
        sum(pair[2] for pair in pairs if abs(pair[i]) <= math.log(1.25)) / total for i in (0, 1)
    ]
    return (*cells, *(f"{100 * share:.0f} %" for share in near))


def quantile(values: list[tuple[float, float]], q: float) -> float:
    """The factor that this share of (log, weight) is within."""
    left = q * sum(weight for _, weight in values)
    for log, weight in sorted(values):
        left -= weight
        if left <= 0:
            return math.exp(log)
    return math.nan


Off = tuple[float, float, str]  # of a row: the logarithm of how far it is off, its weight, source


def shrunk(logs: dict[tuple[str, str], list[Off]]) -> dict[tuple[str, str], float]:
    """The factor that 8 in 10 rows of each class are within, of few sources somewhat more: the next
    one is not among them. Of classes of few sources that are nearer than all rows are, nearer to
    that of all."""
    found = {}
    for kind in ("tg", "pp"):
        every = math.log(quantile([row[:2] for row in logs["all", kind]], 0.8))
        for name in CLASSES:
            own = logs.get((name, kind), [])
            n = len({source for _, _, source in own})
            most = min(1.0, 0.8 * (1 + UNSEEN / n)) if n else 0.8
            # by rows and by sources, whichever is more
            at = max(
                [
                    math.log(quantile([(row[0], row[1] ** power) for row in own], most))
                    for power in (0, 0.5)
                    if own
                ],
                default=0.0,
            )
            found[name, kind] = math.exp(max(at, (n * at + ALL * every) / (n + ALL)))
    return found


def by_backend(
    logs: dict[tuple[str, str, str], list[Off]], doubt: dict[tuple[str, str], float]
) -> dict[tuple[str, str, str], float]:
    """The factor that 8 in 10 rows of a class are within on a backend, of those with rows of
    several sources; of few it is nearer to the class's."""
    found = {}
    for (name, kind, backend), own in sorted(logs.items()):
        n = len({source for _, _, source in own})
        if n < SEVERAL:
            continue
        most = min(1.0, 0.8 * (1 + UNSEEN / n))
        at = math.log(quantile([row[:2] for row in own], most))
        every = math.log(doubt[name, kind])
        found[name, kind, backend] = math.exp((n * at + SEVERAL * every) / (n + SEVERAL))
    return found


@dataclass(frozen=True)
class Stated:
    """What a plan says of itself: a doubt by class, and by kind what RAM of unknown speed and GPUs
    of few sources add."""

    doubt: dict[tuple[str, str], float]
    unknown: dict[str, float]
    few: dict[str, float]
    own: dict[tuple[str, str, str], float]  # the doubt by backend as well

    @classmethod
    def of(cls, rows: list[Row], offs: list[float]) -> Stated:
        """From rows and how far each is off; a source's rows weigh as their square root."""
        count = Counter((row.source, row.kind, row.placement) for row in rows)
        known: dict[tuple[str, str], list[Off]] = defaultdict(list)
        unknown: dict[str, list[Off]] = defaultdict(list)
        few: dict[str, list[Off]] = defaultdict(list)
        apart: dict[tuple[str, str, str], list[Off]] = defaultdict(list)
        for row, off in zip(rows, offs, strict=True):
            weight = count[row.source, row.kind, row.placement] ** -0.5
            # few machines say the speed of their RAM where the CPU computes everything
            if row.ram and row.placement in IN_RAM and row.placement != "CPU":
                unknown[row.kind].append((off, weight, row.placement))
            elif row.others < FEW_SOURCES:
                few[row.kind].append((off, weight, row.placement))
            else:
                for name in (row.placement, "all"):
                    known[name, row.kind].append((off, weight, row.source))
                for backend in row.backends:
                    apart[row.placement, row.kind, backend].append((off, weight, row.source))
        doubt = shrunk(known)
        own = by_backend(apart, doubt)

        def beyond(found: dict[str, list[Off]]) -> dict[str, float]:
            """What these rows are off beyond the doubt of their class, in squares."""
            more = dict.fromkeys(("pp", "tg"), 1.05)
            for kind, offs in found.items():
                left = [
                    (math.sqrt(max(0.0, log**2 - math.log(doubt[name, kind]) ** 2)), weight)
                    for log, weight, name in offs
                ]
                more[kind] = max(1.05, quantile(left, 0.8))
            return more

        return cls(doubt, beyond(unknown), beyond(few), own)

    def holds(self, row: Row, off: float) -> bool:
        """Whether a row is within what a plan would say."""
        more = self.unknown[row.kind] if row.ram and row.placement in IN_RAM else 1.0
        few = self.few[row.kind] if row.others < FEW_SOURCES else 1.0
        every = self.doubt[row.placement, row.kind]
        own = [self.own.get((row.placement, row.kind, name), every) for name in row.backends]
        return off <= math.hypot(*map(math.log, (max(own, default=every), more, few)))


def sources_of(rows: list[Row]) -> dict[tuple[str, str], set[str]]:
    """The sources with rows of each backend's generations."""
    found = defaultdict(set)
    for row in rows:
        for key in row.keys:
            found[key].add(row.source)
    return found


def doubts(rows: list[Row], predicted: list[float]) -> Stated:
    """The doubts of all rows. Shows for how many rows they hold, and those that were made without a
    row's source."""
    offs = [abs(math.log(p / row.measured)) for row, p in zip(rows, predicted, strict=True)]
    stated = Stated.of(rows, offs)
    without = {}
    for source in {row.source for row in rows}:
        kept = [i for i, row in enumerate(rows) if row.source != source]
        without[source] = Stated.of([rows[i] for i in kept], [offs[i] for i in kept])
    cells = []
    for kind in ("tg", "pp"):
        for name in (*CLASSES, *sorted({name for row in rows for name in row.backends}), "all"):
            found = [
                (stated.holds(row, off), without[row.source].holds(row, off))
                for row, off in zip(rows, offs, strict=True)
                if row.kind == kind and name in (row.placement, "all", *row.backends)
            ]
            if found:
                within = f"{stated.doubt[name, kind]:.2f}" if name in CLASSES else ""
                shares = [sum(held) / len(held) for held in zip(*found, strict=True)]
                texts = [f"{100 * held:.0f} %" for held in shares]
                cells.append((f"{name} {kind}", str(len(found)), within, *texts))
    PAGE["more"] = [
        (what, f"{of['tg']:.2f}", f"{of['pp']:.2f}")
        for what, of in (
            ("RAM of unknown speed", stated.unknown),
            ("GPUs of few sources", stated.few),
        )
    ]
    title = "The uncertainty that is stated, without " + "; ".join(map(", ".join, PAGE["more"]))
    head = ("n", "within", "holds for", "made without the source")
    show(title, "class", cells, "stated", head)
    return stated


def without_source(
    rows: list[Row],
    near: dict,
    only: frozenset[str] = frozenset(),
    fields: frozenset[str] = frozenset(),
) -> list[float]:
    """Each row's prediction with constants that were fitted without its source. The fits begin at
    that of all rows, whose derivatives they keep."""
    whole = Fit(rows, near, only, fields)
    slopes = whole.slopes()

    def of(left_out: str) -> dict[int, float]:
        """The predictions of one source's rows."""
        fitted = Fit([row for row in rows if row.source != left_out], near, only, fields, whole)
        kept = [i for i, row in enumerate(rows) if row.source != left_out]
        fitted.improve(ROUNDS_WITHOUT, slopes[kept])
        tables = fitted.tables()
        return {
            i: predict(row, *tables, plain=not row.old)
            for i, row in enumerate(rows)
            if row.source == left_out
        }

    _WORK.append(of)
    names = sorted({row.source for row in rows})
    # Forked, so that workers have the rows.
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = {i: p for part in pool.imap(_work, names, 1) for i, p in part.items()}
    return [found[i] for i in range(len(rows))]


_WORK: list[Callable[[str], dict[int, float]]] = []  # of the one pool


def _work(name: str) -> dict[int, float]:
    return _WORK[-1](name)


def number(value: float) -> str:
    return f"{value:.3g}"


def write(tables: tuple, rows: list[Row], found: Doubts | None, only: frozenset[str]) -> None:
    """Write rates.csv, doubts.csv and, between their marks, the constants of rates.py. Without
    `found` the doubts stay as they are, with `only` the rates of other backends."""
    rates, shared, old, _ = tables
    if only:
        others = {
            key: rate for key, rate in speeds.RATES.items() if key[0] and not among(key, only)
        }
        rates = {key: rate for key, rate in rates.items() if among(key, only)} | others
        rates = dict(sorted(rates.items(), key=lambda item: (bool(item[0][1]), item[0])))
    if found is None:
        old = {
            (backend, i, field): getattr(age, field)
            for backend, ages in speeds.AGES.items()
            for i, age in enumerate(ages)
            for field in AGED
        } | old
    count = sources_of(rows)
    lines = [MADE, f"backend,generation,{','.join(FIELDS)},sources"]
    for key, rate in [*rates.items(), (("", ""), START[""])]:
        # a generation without rows takes its backend's rates
        n = len(count[key]) if key[1] else 0
        n = n if not only or n else rate.sources
        lines.append(",".join([*key, *[number(getattr(rate, field)) for field in FIELDS], str(n)]))
    folder = ROOT / "autolayers" / "work"
    (folder / "rates.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    if found is not None:
        write_doubts(folder, found)
    more = {
        "UNKNOWN_RAM": speeds.UNKNOWN_RAM if found is None else found.unknown,
        "FEW_SOURCES": speeds.FEW_SOURCES if found is None else found.few,
    }

    # As ruff formats it, so that a fit changes figures alone
    lines = [
        "SHARED = Shared(",
        *(f"    {name}={number(value)}," for name, value in vars(shared).items()),
        ")",
        "",
        "AGES: dict[str, tuple[Age, ...]] = {  # before, kernel, prompt, experts",
    ]
    for backend in sorted({key[0] for key in old if isinstance(key, tuple)}):
        ages = ", ".join(
            f"Age({build}, {number(old[backend, i, 'kernel'])}, "
            f"{number(old[backend, i, 'prompt'])}, {number(old[backend, i, 'experts'])})"
            for i, (build, _) in enumerate(AGES)
        )
        lines.append(f'    "{backend}": ({ages}),')
    texts = {
        name: ", ".join(f'"{kind}": {value:.2f}' for kind, value in sorted(values.items()))
        for name, values in more.items()
    }
    lines += [
        "}",
        "",
        "# what RAM of unknown speed adds to a doubt, where RAM decides; and GPUs of a generation",
        "# whose launches one source measured, or none",
        *(f"{name} = {{{text}}}" for name, text in texts.items()),
        "",
    ]
    file = folder / "rates.py"
    text = file.read_text()
    begin, end = text.index("# --- made by"), text.index("# --- end")
    head = text[begin : text.index("\n", begin) + 1]
    file.write_text(text[:begin] + head + "\n" + "\n".join(lines) + "\n" + text[end:])


def write_doubts(folder: Path, found: Doubts) -> None:
    """Writes doubts.csv."""
    doubt = found.doubt
    # RAM's as well
    found.between |= {("CPU", kind): found.between["dense partial", kind] for kind in ("tg", "pp")}
    lines = [MADE, "class,kind,backend,doubt,calibrated,between,run"]
    for key, value in doubt.items():
        known = min(found.calibrated[key], value)
        between = min(found.between.get(key, 9.0), value)
        name = ",".join(key)
        lines.append(f"{name},,{value:.2f},{known:.2f},{between:.2f},{found.run[key]:.2f}")
    lines += [f"{','.join(key)},{value:.2f},,," for key, value in found.own.items()]
    (folder / "doubts.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


# Where the fit starts, by backend: a share of the bandwidth and of the arithmetic that a good
# kernel reaches
SHARED = speeds.Shared(
    token=170,
    prompt_experts=0.83,
    prompt_read=0.9,
    activations=8,
    hop=65,
    reduction=34,
    ram=0.95,
    ram_experts=0.95,
    alone=0.9,
    core=13,
    core_flops=74,
    core_experts=0.5,
    core_attention=10,
    core_attention_far=2.5,
    core_scores=25,
    core_unfused=18,
    core_kernel=2.0,
    ram_copy=0.55,
    copied=0.3,
    several=1.3,
    stages=0.29,
)
VULKAN = speeds.Rates(0.78, 0.55, 2.0, 0.35, 0.1, 80, bf16=0.5, bf16_experts=0.45)
START = {
    "CUDA": speeds.Rates(0.83, 0.55, 2.0, 0.45, 0.33, 23, 1.0),
    ("CUDA", "Turing"): speeds.Rates(0.8, 0.55, 2.0, 0.45, 0.33, 23, 0.2),
    ("CUDA", "A100"): speeds.Rates(0.6, 0.55, 2.0, 0.45, 0.33, 23, 1.0),
    # rated for wgmma, which no kernel of llama.cpp uses: mma.sync reaches a part of it
    ("CUDA", "Hopper"): speeds.Rates(0.6, 0.55, 2.0, 0.18, 0.15, 23, 1.0),
    ("CUDA", "Volta"): speeds.Rates(0.75, 0.55, 2.0, 0.3, 0.15, 23, 1.0),
    ("CUDA", "Pascal"): speeds.Rates(0.65, 0.55, 2.5, 1.3, 0.6, 23, 1.0),
    ("CUDA", "GB10"): speeds.Rates(0.85, 0.55, 2.0, 0.33, 0.25, 23, 1.0),
    "Vulkan": VULKAN,
    ("Vulkan", "Turing"): replace(VULKAN, matmul=0.5, attention=0.3),
    ("Vulkan", "Ampere"): replace(VULKAN, matmul=0.5, attention=0.3),
    ("Vulkan", "Ada"): replace(VULKAN, read=0.85, matmul=0.5, attention=0.3),
    ("Vulkan", "Blackwell"): replace(VULKAN, read=0.85, matmul=0.5, attention=0.3),
    ("Vulkan", "Arc"): replace(
        VULKAN, read=0.75, kernel=3.0, matmul=0.1, attention=0.05, chosen=0.25
    ),
    ("Vulkan", "Gen9"): replace(VULKAN, read=0.58, kernel=2.5, matmul=0.25, attention=0.08),
    ("Vulkan", "RDNA2"): replace(VULKAN, handover=190),
    ("Vulkan", "RDNA4"): replace(VULKAN, matmul=0.15, attention=0.05),
    ("Vulkan", "Strix Halo"): replace(VULKAN, read=0.9, matmul=0.33, attention=0.09),
    "ROCm": speeds.Rates(0.76, 0.55, 2.2, 0.35, 0.13, 40),
    ("ROCm", "CDNA"): speeds.Rates(0.65, 0.5, 6.0, 0.6, 0.2, 40),
    ("ROCm", "RDNA3"): speeds.Rates(0.7, 0.55, 2.2, 0.5, 0.2, 40),
    "MTL": speeds.Rates(0.80, 0.55, 4.0, 0.85, 0.35, 40),
    "SYCL": speeds.Rates(0.75, 0.5, 3.0, 0.1, 0.05, 80),
    ("SYCL", "Arc"): speeds.Rates(0.75, 0.5, 3.0, 0.1, 0.05, 80, chosen=0.25),
    "": speeds.Rates(0.70, 0.50, 3.0, 0.30, 0.1, 80),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--rows", type=Path, action="append", default=[], help="more rows")
    options.add_argument(
        "--write", action="store_true", help="write the constants into autolayers/work"
    )
    options.add_argument("--docs", action="store_true", help="write docs/speeds.md")
    options.add_argument("--quick", action="store_true", help="leave out the fits without a source")
    options.add_argument("--show", type=int, default=0, help="so many of the worst rows")
    options.add_argument(
        "--only", default="", help="fit the constants of these alone: ROCm,CUDA/Hopper"
    )
    options.add_argument(
        "--fields", default="", help="fit the constants of these names alone: copied,ram_copy"
    )
    words = options.parse_args()
    fields = frozenset(filter(None, words.fields.split(",")))
    only = frozenset(filter(None, words.only.split(",")))
    every = loaded([ROWS, *words.rows], only)
    rows = [row for row in every if not only or any(among(key, only) for key in row.keys)]
    tables, near = fit(rows, only, fields)
    rates, shared, old, ram = tables
    for key, rate in rates.items():
        print(
            f"{' '.join(key):24}", *(f"{field} {number(getattr(rate, field))}" for field in FIELDS)
        )
    print(*(f"{name} {number(value)}" for name, value in vars(shared).items()))
    print(
        "older:",
        *(
            f"{name if isinstance(name, str) else ' '.join(map(str, name))} {number(value)}"
            for name, value in old.items()
        ),
    )
    for machine, value in ram.items():
        if not machine.startswith("bus of "):
            print(f"RAM {value:.0f} GB/s: {machine.removeprefix('https://github.com/')}")
    recent = [row for row in rows if not row.old]
    count = sources_of(recent)
    for row in recent:
        row.others = min([len(count[key]) - 1 for key in row.keys], default=99)
    table("Fitted, all rows", rows, [predict(row, *tables) for row in rows])
    predicted = [predict(row, *tables, plain=True) for row in recent]
    table("Fitted: rows since 2025, as a plan predicts", recent, predicted, "fitted")
    in_order(recent, predicted)
    if words.show:
        order = sorted(
            zip(recent, predicted, strict=True), key=lambda p: -abs(math.log(p[1] / p[0].measured))
        )
        for row, p in order[: words.show]:
            print(
                f"{p / row.measured:5.2f} {row.kind} {row.placement:15} {p:8.1f} / "
                f"{row.measured:8.1f} {row.label}"
            )
    # A few constants or a quick fit say nothing about how far predictions of others are off
    doubt: Doubts | None = None
    if not words.quick:
        without = without_source(rows, near, only, fields)
        left_out = [p for row, p in zip(rows, without, strict=True) if not row.old]
        table("Rows since 2025, each predicted without its source", recent, left_out, "unseen")
        stated = doubts(recent, left_out)
        found = Doubts(
            stated.doubt,
            stated.unknown,
            stated.few,
            *calibrated(recent, left_out),
            apart(recent, left_out),
            stated.own,
        )
        floors(recent, predicted, left_out)
        sources(recent, left_out)
        if words.docs and not (only or fields):
            page = speeds_page.render(PAGE, ORDER, len(recent))
            (ROOT / "docs" / "speeds.md").write_text(page, encoding="utf-8")
        if not (only or fields):
            doubt = found
    if words.write:
        write(tables, every, doubt, only)


@dataclass
class Doubts:
    """How far predictions of sources that were left out are off: by class, by RAM of unknown speed,
    after one measured run, what such a run shares, and comparisons of two."""

    doubt: dict[tuple[str, str], float]
    unknown: dict[str, float]
    few: dict[str, float]
    calibrated: dict[tuple[str, str], float]
    run: dict[tuple[str, str], float]
    between: dict[tuple[str, str], float]
    own: dict[tuple[str, str, str], float]  # the first by backend as well


if __name__ == "__main__":
    # Rows are kept as this module's, whichever script reads them.
    import fit_speed

    fit_speed.main()
