"""What launches take besides weights and caches: graph buffers, margins and extras. They are slow
to measure, so what was measured predicts the rest; where nothing alike was measured, as little as
it may be."""

from __future__ import annotations

from ..backends.ops import TEMPORARIES
from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .evaluate import Candidate

    # the devices and slots, the kind of placement ("whole": nothing in RAM), the context, the
    # micro-batch
    Point = tuple[object, str, int, int]

FIRST = 768 << 20  # bytes on a device before anything is measured,
SHARE = 4  # but no more than this part of it
_GROWS = 0.2  # part of the graph buffers that at least grows with the micro-batch
# bytes of the mask for each token of the micro-batch and each of the context
_MASK = 2
ALIKE = 0.75  # of the graph buffers of a similar placement
_MASKS = 4  # that there may be
# of the graph buffers of another kind of placement, or of a much larger context
LEAST = 0.5


@dataclass(frozen=True)
class Taken:
    """Bytes by device: what is `fixed`, and graph buffers, which depend on context and micro-batch;
    and of RAM. Without flash attention the temporaries of operations grow as graph buffers do."""

    fixed: Mapping[str, int]
    compute: Mapping[str, int]
    ram: int
    flash: bool  # without flash attention graph buffers grow with the context,
    cached: bool  # or with a cache in RAM, as they hold a layer's part of it


class Buffers:
    """What was measured in one search."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = limits
        self.taken: dict[Point, Taken] = {}
        self.version = 0  # changes with what is known
        # frames, contexts and micro-batches that no launch fits
        self.full: set[tuple[object, int, int]] = set()
        # of a device with the output layer alone
        self.output: dict[tuple[object, str, int, int], int] = {}

    def record(self, point: Point, candidate: Candidate, ram: int) -> None:
        use = candidate.breakdown.devices
        # a device without layers has no room for its buffers: more layers elsewhere change nothing
        if any(left < 0 and not use[name].model for name, left in candidate.spare.items()):
            self.full.add((point[0], *point[2:]))
        flash = candidate.breakdown.flash_attn
        cached = candidate.params.kv_offload is not False
        compute = {
            name: use[name].compute + (0 if flash and cached else _temporaries(candidate, name))
            for name in candidate.spare
        }
        fixed = {
            name: size - compute[name] for name, size in candidate.overheads(self.limits).items()
        }
        before = self.taken.get(point)
        self.version += 1
        # they only grow, so that a search ends
        if before is not None and not candidate.fits_devices:
            compute = {
                name: max(size, before.compute.get(name, 0)) for name, size in compute.items()
            }
            fixed = {name: max(size, before.fixed.get(name, 0)) for name, size in fixed.items()}
        self.taken[point] = Taken(fixed, compute, ram, flash, cached)

    def record_output(self, point: Point, name: str, candidate: Candidate) -> None:
        """Notes what a device takes that has the output layer alone."""
        frame, _, n_ctx, n_ubatch = point
        self.output[frame, name, n_ctx, n_ubatch] = candidate.overheads(self.limits).get(name, 0)

    def of_output(self, point: Point, name: str, usual: int) -> int:
        """Return the expected bytes of a device that has the output layer alone, and so computes
        no attention: at least those measured with a smaller context and micro-batch; a part of
        `usual` before anything was measured."""
        frame, _, n_ctx, n_ubatch = point
        sizes = [
            size
            for (of, device, ctx, batch), size in self.output.items()
            if (of, device) == (frame, name) and ctx <= n_ctx and batch <= n_ubatch
        ]
        return max(sizes, default=usual // SHARE)

    def at(self, point: Point) -> dict[str, int]:
        """Return the expected bytes on each device."""
        frame, kind, n_ctx, n_ubatch = point
        same = {key[2:]: taken for key, taken in self.taken.items() if key[:2] == (frame, kind)}
        if same:
            return self._of(same, n_ctx, n_ubatch, 1.0)
        # The same frame and related kind, the same kind of any frame, any kind of this frame,
        # anything.
        for share, like in (
            (ALIKE, (frame, _related(kind))),
            (LEAST, (None, kind)),
            (LEAST, (frame, "")),
            (LEAST, (None, "")),
        ):
            related = {key[2:]: taken for key, taken in self.taken.items() if _matches(key, *like)}
            if related:
                return self._of(related, n_ctx, n_ubatch, share)
        return self.guess()

    def guess(self) -> dict[str, int]:
        """Return the bytes on each device before anything was measured."""
        return {name: min(FIRST, limit // SHARE) for name, limit in self.limits.items()}

    def rules_out(self, point: Point) -> bool:
        """Return whether no launch of this frame fits with as large a context and micro-batch."""
        frame, _, n_ctx, n_ubatch = point
        return any(
            each == frame and ctx <= n_ctx and size <= n_ubatch for each, ctx, size in self.full
        )

    def of_ram(self, point: Point) -> int:
        """Return the expected bytes of system memory: of launches with this micro-batch, or in
        proportion to that of others, as graph buffers are nearly all of it."""
        frame, kind, n_ctx, n_ubatch = point
        alike = {
            key[2:]: taken.ram for key, taken in self.taken.items() if key[:2] == (frame, kind)
        }
        # With the same micro-batch if there is one: graph buffers in RAM are proportional to it.
        same = {(ctx, size): ram for (ctx, size), ram in alike.items() if size == n_ubatch}
        if same:
            # they grow with the context, so each is a bound
            return max([int(ram * min(1.0, n_ctx / max(1, ctx))) for (ctx, _), ram in same.items()])
        return min(
            [
                int(ram * min(1.0, n_ctx / max(1, ctx)) * min(1.0, n_ubatch / size))
                for (ctx, size), ram in alike.items()
            ],
            default=0,
        )

    def knows(self, point: Point) -> bool:
        """Return whether a launch of this frame and kind was measured with this micro-batch and no
        more context."""
        frame, kind, n_ctx, n_ubatch = point
        return any(
            _matches(key, frame, _related(kind)) and key[3] == n_ubatch and key[2] <= n_ctx
            for key in self.taken
        )

    def _of(
        self, measured: Mapping[tuple[int, int], Taken], n_ctx: int, n_ubatch: int, share: float
    ) -> dict[str, int]:
        """Return the bytes by the nearest micro-batch's launches, at another context on the line
        between two of them."""
        nearest = _nearest(n_ubatch, {size for _, size in measured})
        points = {ctx: taken for (ctx, size), taken in measured.items() if size == nearest}
        # The nearest micro-batch was measured, not this one: grow or shrink by the least factor.
        share *= _growth(n_ubatch / nearest)
        below = max([ctx for ctx in points if ctx <= n_ctx], default=None)
        above = min([ctx for ctx in points if ctx >= n_ctx], default=None)
        if below is not None and above is not None:
            part = (n_ctx - below) / max(1, above - below)
            return self._sum(points[below], _between(points[below], points[above], part), share)
        here = above if below is None else below
        assert here is not None
        # Only contexts on one side were measured.
        near = points[here]
        # Without flash attention the scores grow with the context; with it only masks do.
        if not near.flash or (n_ctx < here and not near.cached):
            return self._sum(near, near.compute, share * n_ctx / max(1, here))
        more = _MASK * nearest * (n_ctx - here) * (_MASKS if n_ctx < here else 1)
        compute = {
            name: max(int(LEAST * size), size + more) if size else 0
            for name, size in near.compute.items()
        }
        return self._sum(near, compute, share)

    def _sum(self, near: Taken, compute: Mapping[str, int], share: float) -> dict[str, int]:
        """Return the sums; a device that the launch did not use takes as much as the least of the
        others."""
        sums = {name: size + int(compute[name] * share) for name, size in near.fixed.items()}
        smallest = min(sums.values(), default=0)
        return {name: sums.get(name, smallest) for name in self.limits}


def _growth(ratio: float) -> float:
    """Return the least factor of graph buffers with this factor of the micro-batch."""
    return ratio if ratio < 1 else 1 + _GROWS * (ratio - 1)


def _between(near: Taken, far: Taken, part: float) -> dict[str, int]:
    """Return the graph buffers at this part of the way from one context to another."""
    return {
        name: size + int((far.compute.get(name, size) - size) * part)
        for name, size in near.compute.items()
    }


def _temporaries(candidate: Candidate, name: str) -> int:
    """Return the bytes of the margin that grow with what operations compute."""
    return sum(size for part, size in candidate.margins.get(name, ()) if part == TEMPORARIES)


def _related(kind: str) -> str:
    """Return the kind without what distinguishes its launches: none, all or a part of a layer in
    RAM."""
    return kind.rpartition(" ")[2]


def _matches(point: Point, frame: object, kind: str) -> bool:
    """Return whether a point is of this frame and kind, or of a related one; None and "" are
    any."""
    return (frame is None or point[0] == frame) and (
        not kind or kind in (point[1], _related(point[1]))
    )


def _nearest(n_ubatch: int, sizes: Iterable[int]) -> int:
    return min(sizes, key=lambda size: (abs(size - n_ubatch), size))
