"""What a launch takes of each device besides weights and caches: graph buffers, margin, extras.
They are slow to measure and change little between launches, so earlier measurements predict the
rest. Each search has its own, for one fidelity and one kind of launch."""

from __future__ import annotations

from ..flags.params import N_UBATCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..flags.params import Params
    from .evaluate import Candidate

FIRST_GUESS = 768 << 20  # bytes on a device, before any is measured
# Least share of the overheads of a measured launch that another launch needs:
ONE_MORE = 0.75  # with one more layer,
# with another number of layers, or with weights in RAM instead of on devices,
ALIKE = 7 / 8
SMALLER = 0.5  # with less context than any so far

_Point = tuple[int, int]  # context and micro-batch


class Overheads:
    """Bytes on each device, by context and micro-batch, as last measured. `idle`: the least of a
    device without layers, also by device (op offload)."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = limits
        self.idle: dict[tuple[_Point, str], int] = {}
        self._known: dict[_Point, dict[str, int]] = {}
        self._fewest: dict[int, dict[str, int]] = {}

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return bool(self._known)

    def at(self, params: Params) -> dict[str, int]:
        """Expected bytes at this context and micro-batch, interpolated from the two nearest: most
        of it is constant, the rest grows with both."""
        if not self._known:
            return dict.fromkeys(self.limits, FIRST_GUESS)
        n_ctx, n_ubatch = _point(params)

        def of(size: int) -> dict[str, int]:
            return _on_line(
                n_ctx, {ctx: known for (ctx, other), known in self._known.items() if other == size}
            )

        return _on_line(n_ubatch, {size: of(size) for _, size in self._known})

    def least(self, params: Params) -> dict[str, int]:
        """What these flags need at least."""
        share = SMALLER if self and self.smaller(params) else 1.0
        return {name: int(size * share) for name, size in self.at(params).items()}

    def fewest(self, params: Params) -> dict[str, int]:
        """The least of all launches with this micro-batch, or else with any, whatever their number
        of layers."""
        found = self._fewest.get(_point(params)[1]) or next(iter(self._fewest.values()), {})
        return {name: int(size * ALIKE) for name, size in found.items()}

    def smaller(self, params: Params) -> bool:
        """Whether this context is smaller than any measured one: it may need much less."""
        return (params.n_ctx or 0) < min(ctx for ctx, _ in self._known)

    def rules_out(self, params: Params) -> bool:
        """Whether a device without layers had no room for its overheads, at this context or
        less."""
        n_ctx, n_ubatch = _point(params)
        return any(
            size > self.limits[name]
            for ((ctx, least), name), size in self.idle.items()
            if ctx <= n_ctx and least <= n_ubatch
        )

    def record(self, candidate: Candidate, trusted: bool) -> None:
        """Record a launch's. If it is not `trusted` (does not fit), only the overheads that grew
        count, which guarantees that a search ends. A device that a trusted launch does not use, and
        that was last measured with more layers, is expected to need no more than the used ones."""
        trusted = trusted or not self._known
        point, before = _point(candidate.params), self.at(candidate.params)
        used = candidate.overheads(self.limits)
        most = max(used.values()) if trusted and used else None
        known = self._known[point] = {
            name: size if most is None else min(size, most) for name, size in before.items()
        }
        fewest = self._fewest.setdefault(point[1], dict(used))
        for name, size in used.items():
            fewest[name] = min(size, fewest.get(name, size))
            known[name] = size if trusted else max(size, before.get(name, 0))
            if not candidate.breakdown.devices[name].model:
                self.idle[point, name] = min(size, self.idle.get((point, name), size))


def _point(params: Params) -> _Point:
    return params.n_ctx or 0, params.n_ubatch or N_UBATCH


def _on_line(x: int, known: dict[int, dict[str, int]]) -> dict[str, int]:
    """Sizes at x on the line through the two nearest known points; the known one if there is no
    other."""
    order = sorted(known, key=lambda other: abs(other - x))
    near = known[order[0]]
    if len(order) == 1 or order[0] == x:
        return near
    far, part = known[order[1]], (x - order[0]) / (order[1] - order[0])
    return {
        name: max(0, size + int((far.get(name, size) - size) * part)) for name, size in near.items()
    }
