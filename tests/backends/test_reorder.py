"""Vulkan, Metal and SYCL buffers would be laid out in an order that no program uses.

Backends that reorder a split: every node once, and after all that it depends on, whatever the
architecture.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import FIXTURES, model

from autolayers import Device, LaunchRefused, estimate
from autolayers.backends.metal import Metal
from autolayers.backends.vulkan import Vulkan
from autolayers.backends.vulkan.reorder_before import reorder_before
from autolayers.builds import rules
from autolayers.flags.parse import parse
from autolayers.ggml.tensor import VIEW_OPS, Graph, Tensor

NAMES = sorted(path.stem for path in (FIXTURES / "headers").glob("*-*.gguf"))


def check(before: list[Tensor], after: list[Tensor]) -> None:
    """The same nodes; what reads or writes memory that another writes keeps its side of it."""
    assert sorted(map(id, before)) == sorted(map(id, after))
    place = {id(node): i for i, node in enumerate(after)}
    # by memory: nodes in their order, whether they write
    touching: dict[int, list[tuple[Tensor, bool]]] = {}
    for node in before:
        for source in node.src:
            assert id(source) not in place or source is node or place[id(source)] < place[id(node)]
        if node.op not in VIEW_OPS:
            for source in node.src:
                touching.setdefault(id(source.view_src or source), []).append((node, False))
            touching.setdefault(id(node.view_src or node), []).append((node, True))
    for nodes in touching.values():
        for i, (node, writes) in enumerate(nodes):
            for other, wrote in nodes[:i] if writes else [pair for pair in nodes[:i] if pair[1]]:
                assert place[id(other)] <= place[id(node)], (other, node, wrote)


def test_older_builds_keep_the_choice_of_experts_together() -> None:
    """What needs not wait goes before it, and none of it between."""
    g = Graph()
    x, logits = g.new("f32", 64, 8), g.new("f32", 8, 8)
    first = g.mul(x, x)
    probabilities = g.soft_max(logits)
    rows = g.reshape(probabilities, 1, 8, 8)
    sorted_ = g.argsort(probabilities)
    best = g.view(sorted_, (2, 8), sorted_.nb[1:2])
    weights = g.get_rows(rows, best)
    last = g.sqr(x)
    chosen = [probabilities, rows, sorted_, best, weights]
    before = [first, *chosen, last]
    after = reorder_before(before, rules(9849))
    check(before, after)
    assert after == [first, last, *chosen]
    # of fewer operations it is no such choice
    assert reorder_before([first, *chosen[:3], last], rules(9849))[1] is probabilities


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Vulkan, Metal])
def test_no_node_runs_before_what_it_depends_on(
    backend: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = backend.graph_optimize
    moved = 0

    def checked(
        self: object,
        nodes: list[Tensor],
        after: Tensor | None,
        add: Callable[[Tensor, Tensor], None],
    ):
        nonlocal moved
        before = list(nodes)
        found = own(self, nodes, after, add)
        check(before, found)
        moved += sum(a is not b for a, b in zip(before, found, strict=True))
        return found

    monkeypatch.setattr(backend, "graph_optimize", checked)
    for name in NAMES[::4]:
        try:
            estimate(
                model(name),
                parse(["-c", "2048", "-np", "2", "-ub", "64"]).params,
                [Device(f"{backend.name}0", 1 << 36, 1 << 36, backend=backend.name)],
            )
        except LaunchRefused:
            continue
    assert moved > 1000
