"""A row of a table with a wrong unit would go unseen.

The tables of numbers: every row has the types and the range that its columns promise.
"""

from __future__ import annotations

import re
from io import BytesIO
from zipfile import ZipFile

from support import ROOT

from autolayers.backends import BACKENDS
from autolayers.devices.cards import CARDS
from autolayers.tables import rows
from autolayers.web.build import wheel
from autolayers.work.rates import GENERATIONS, RATES

TABLES = ("devices/cards.csv", "work/rates.csv", "work/doubts.csv")


def test_every_card_has_plausible_figures() -> None:
    cards = rows("devices/cards.csv")
    assert len({row["name"] for row in cards}) == len(cards) > 300
    for row in cards:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row["name"]), row
        assert row["backend"] in BACKENDS and row["description"].isprintable(), row
        assert re.fullmatch(r"([345]x(4|8|16))?", row["pcie"]), row
        assert bool(row["compute_capability"]) == bool(row["sm"]) == (row["backend"] == "CUDA"), row
        assert row["mib"] or row["ram_gib"], row
    for name, card in CARDS.items():
        assert 1900 <= card.usable <= 600_000, name
        assert not card.ram or card.usable <= 1024 * card.ram, name
        assert card.ram or card.link, name
        assert 40 <= card.bandwidth <= 10_000 or card.bandwidth == 0 == card.fp16, name
        assert 0 <= card.fp16 <= 3000, name


def test_every_rate_is_in_its_range() -> None:
    known = {"", "Gen9", *(name for name, _, _ in GENERATIONS)}
    assert {generation for _, generation in RATES} <= known
    assert {backend for backend, _ in RATES} <= {"", *BACKENDS} and ("", "") in RATES
    for key, rates in RATES.items():
        assert 0 < rates.read <= 1 and 0 < rates.cache <= 1 and 0 < rates.kernel < 20, key
        assert 0 < rates.matmul < 2 and 0 < rates.attention < 2 and rates.sources >= 0, key
        # no driver multiplies bf16 faster than f16: 1.2 where no row was of bf16
        assert key[0] != "Vulkan" or max(rates.bf16, rates.bf16_experts) <= 1, key
    for row in rows("work/doubts.csv"):
        # of one backend only the doubt is known
        assert 1 < float(row["doubt"]) < 3, row
        assert bool(row["backend"]) == (not row["between"]) == (not row["calibrated"]), row
        if not row["backend"]:
            assert float(row["between"]) <= float(row["doubt"]), row
            assert float(row["between"]) > 1 and 1 < float(row["calibrated"]) < 3, row


def test_tables_are_plain_and_travel_with_the_package() -> None:
    with ZipFile(BytesIO(wheel())) as page:
        for name in TABLES:
            text = (ROOT / "autolayers" / name).read_text("ascii")
            assert '"' not in text and page.read(f"autolayers/{name}").decode() == text
