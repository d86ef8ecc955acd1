"""What launches take besides weights and caches: graph buffers, margins and extras. They are slow
to measure, so what was measured predicts the rest; where nothing alike was measured, as little as
it may be."""

from __future__ import annotations

from ..backends.ops import TEMPORARIES
from ..records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .evaluate import Candidate

    # the devices and slots, the kind of placement ("whole": nothing in RAM), the context, the
    # micro-batch
    Point = tuple[object, str, int, int]

# Which part of a measured launch's graph buffers and margins another one takes at least: with
# another context, micro-batch or number of layers;
ALIKE = 7 / 8
SIMILAR = 0.75  # of a similar placement, or with one layer more;
LEAST = 0.5  # of another kind of placement, or with a much larger context;
ALONE = 0.25  # on a device that has the output alone


@dataclass(frozen=True)
class Taken:
    """Bytes by device: what is `fixed`, and graph buffers, which depend on context and micro-batch;
    and of RAM. Without flash attention the temporaries of operations grow as graph buffers do."""

    fixed: Mapping[str, int]
    compute: Mapping[str, int]
    ram: int
    flash: bool  # without flash attention graph buffers grow with the context,
    cached: bool  # or with a cache in RAM, as they hold a layer's part of it
    output: str  # the device of several that has the output too


@dataclass(frozen=True)
class Needs:
    """Expected bytes on each device besides weights and caches: where it has layers alone, layers
    and the output, or the output alone, which computes no attention."""

    layers: Mapping[str, int]
    output: Mapping[str, int]
    alone: Mapping[str, int]

    @classmethod
    def alike(cls, needs: Mapping[str, int]) -> Needs:
        return cls(needs, needs, {name: int(ALONE * size) for name, size in needs.items()})

    def of(self, name: str, last: str, alone: bool) -> int:
        """Return those of a device where the `last` one has the output, `alone` or not."""
        if name != last:
            return self.layers[name]
        return self.alone[name] if alone else self.output[name]


class Buffers:
    """What was measured in one search."""

    def __init__(self, limits: Mapping[str, int], least: Mapping[str, int] | None = None) -> None:
        """`least`: bytes that every launch takes on each device."""
        self.limits = limits
        self.least = least or dict.fromkeys(limits, 0)
        self.taken: dict[Point, Taken] = {}
        self.version = 0  # changes with what is known
        # frames, contexts and micro-batches that no launch fits
        self.full: set[tuple[object, int, int]] = set()
        # of a device with the output layer alone
        self.alone: dict[tuple[object, str, int, int], int] = {}
        self._needs: dict[Point, Needs] = {}

    def record(
        self, point: Point, candidate: Candidate, ram: int, output: str = "", alone: bool = False
    ) -> None:
        """Note what a launch takes; `output`: the device of several that has the output, `alone` or
        not."""
        use = candidate.breakdown.devices
        # a device without layers has no room for its buffers: more layers elsewhere change nothing
        if any(left < 0 and not use[name].model for name, left in candidate.spare.items()):
            self.full.add((point[0], *point[2:]))
        flash = candidate.breakdown.flash_attn
        cached = candidate.params.kv_offload is not False
        overheads = candidate.overheads(self.limits)
        # The bytes of the margin that grow with what operations compute
        compute = {
            name: use[name].compute
            + (
                0
                if flash and cached
                else sum(
                    size for part, size in candidate.margins.get(name, ()) if part == TEMPORARIES
                )
            )
            for name in candidate.spare
        }
        fixed = {name: size - compute[name] for name, size in overheads.items()}
        if alone:
            frame, _, n_ctx, n_ubatch = point
            self.alone[frame, output, n_ctx, n_ubatch] = overheads.get(output, 0)
        before = self.taken.get(point)
        # they only grow, so that a search ends
        if before is not None and before.output == output and not candidate.fits_devices:
            compute = {
                name: max(size, before.compute.get(name, 0)) for name, size in compute.items()
            }
            fixed = {name: max(size, before.fixed.get(name, 0)) for name, size in fixed.items()}
        self.note(point, Taken(fixed, compute, ram, flash, cached, output))

    def note(self, point: Point, taken: Taken) -> None:
        self.version += 1
        self._needs.clear()
        self.taken[point] = taken

    def at(self, point: Point) -> Needs:
        """Return what is expected; less, where no launch like it was measured with this
        micro-batch."""
        if point not in self._needs:
            self._needs[point] = self._expected(point)
        return self._needs[point]

    def _expected(self, point: Point) -> Needs:
        frame, kind, n_ctx, n_ubatch = point
        share, alike = self._alike(frame, kind)
        sure = 1.0 if share == 1 and any(size == n_ubatch for _, size in alike) else ALIKE
        if not alike:
            return Needs(self.least, self.least, dict.fromkeys(self.limits, 0))
        # What launches took whose output was on the same device.
        by_output = {
            output: self._of(
                {key: taken for key, taken in alike.items() if taken.output == output},
                n_ctx,
                n_ubatch,
                share,
            )
            for output in {taken.output for taken in alike.values()}
        }
        layers: dict[str, int] = {}
        outputs: dict[str, int] = {}
        for name in self.limits:
            others = [sizes[name] for output, sizes in by_output.items() if output != name]
            own = by_output.get(name, {}).get(name)
            layers[name] = max(others) if others else int(LEAST * (own or 0))
            outputs[name] = layers[name] if own is None else own
        # The output alone takes at least what was measured with a smaller context and micro-batch.
        alone = {
            name: max(
                [
                    size
                    for (of, device, ctx, batch), size in self.alone.items()
                    if (of, device) == (frame, name) and ctx <= n_ctx and batch <= n_ubatch
                ],
                default=int(ALONE * layers[name]),
            )
            for name in self.limits
        }
        return Needs(
            {name: int(size * sure) for name, size in layers.items()},
            {name: int(size * sure) for name, size in outputs.items()},
            alone,
        )

    def _alike(self, frame: object, kind: str) -> tuple[float, dict[tuple[int, int], Taken]]:
        """Return the launches that are like these, by context and micro-batch, and which part of
        what they took is expected."""
        same = {key[2:]: taken for key, taken in self.taken.items() if key[:2] == (frame, kind)}
        if same:
            return 1.0, same
        # The same frame and related kind, the same kind of any frame, any kind of this frame,
        # anything.
        for share, like in (
            (SIMILAR, (frame, _related(kind))),
            (LEAST, (None, kind)),
            (LEAST, (frame, "")),
            (LEAST, (None, "")),
        ):
            related = {key[2:]: taken for key, taken in self.taken.items() if _matches(key, *like)}
            if related:
                return share, related
        return 0.0, {}

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

    def _of(
        self, measured: Mapping[tuple[int, int], Taken], n_ctx: int, n_ubatch: int, share: float
    ) -> dict[str, int]:
        """Return the bytes by the nearest micro-batch's launches, at another context on the line
        between two of them."""
        nearest = min({size for _, size in measured}, key=lambda size: (abs(size - n_ubatch), size))
        points = {ctx: taken for (ctx, size), taken in measured.items() if size == nearest}
        # The nearest micro-batch was measured, not this one: grow or shrink by the least factor.
        ratio = n_ubatch / nearest
        # At least a fifth of the graph buffers grows with the micro-batch.
        growth = ratio if ratio < 1 else 1 + 0.2 * (ratio - 1)
        share *= growth
        fixed = min(1.0, growth)  # a part of a margin is temporaries, which shrink as well
        below = max([ctx for ctx in points if ctx <= n_ctx], default=None)
        above = min([ctx for ctx in points if ctx >= n_ctx], default=None)
        if below is not None and above is not None:
            part = (n_ctx - below) / max(1, above - below)
            # The graph buffers at this part of the way from one context to the other.
            near, far = points[below], points[above]
            compute = {
                name: size + int((far.compute.get(name, size) - size) * part)
                for name, size in near.compute.items()
            }
            return self._sum(near, compute, share, fixed)
        here = above if below is None else below
        assert here is not None
        # Only contexts on one side were measured.
        near = points[here]
        # Without flash attention the scores grow with the context; with it only masks do.
        if not near.flash or (n_ctx < here and not near.cached):
            return self._sum(near, near.compute, share * n_ctx / max(1, here), fixed)
        # Two bytes of a mask for each token of both; of up to four masks.
        more = 2 * nearest * (n_ctx - here) * (4 if n_ctx < here else 1)
        compute = {
            name: max(int(LEAST * size), size + more) if size else 0
            for name, size in near.compute.items()
        }
        return self._sum(near, compute, share, fixed)

    def _sum(
        self, near: Taken, compute: Mapping[str, int], share: float, fixed: float
    ) -> dict[str, int]:
        """Return the sums of these parts of both; a device that the launch did not use takes as
        much as the least of those without the output."""
        sums = {
            name: max(self.least[name], int(size * fixed)) + int(compute[name] * share)
            for name, size in near.fixed.items()
        }
        least = int(LEAST * sums.get(near.output, 0))
        smallest = min([size for name, size in sums.items() if name != near.output], default=least)
        return {name: sums.get(name, smallest) for name in self.limits}


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
