"""What somebody measured, beside a plan's prediction."""

from __future__ import annotations

from ..backends import backend_of
from ..keys import written
from ..records import dataclass
from ..work.measured import Asked, MeasuredRate, card_of, drawn, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..model import Model
    from ..work.speed import Speed


@dataclass(frozen=True)
class Measured:
    """The nearest measurements of generated tokens and of prompts, None for none. `drawn`: tokens
    per second that measurements make of a prediction that `contradicting` of them contradict, 0 if
    they do not."""

    generation: MeasuredRate | None
    prompt: MeasuredRate | None
    drawn: float = 0.0
    contradicting: int = 0
    # the nearest one of a recent build alone is outside the range of its prediction
    outside: bool = False

    @property
    def row(self) -> MeasuredRate:
        """The one that is shown first."""
        row = self.generation or self.prompt
        assert row is not None
        return row

    def to_dict(self) -> dict[str, object]:
        """Return the nearest row, its rate under the name that a plan's speed has; `prompt`: that
        of prompts."""
        return written("measured", self)


def measured(model: Model, used: Iterable[tuple[str, str, int]], speed: Speed) -> Measured | None:
    """Return what was measured of a model, or a twin of it, on devices of these names, descriptions
    and bytes; of CPUs nothing, as they have no names here."""
    devices = list(used)
    # Rows are of one backend, so mixed devices have none.
    backends = {backend_of(name).name for name, _, _ in devices}
    if len(backends) != 1:
        return None
    return measured_on(
        model,
        [card_of(description, total) for _, description, total in devices],
        backends.pop(),
        speed,
    )


def measured_on(model: Model, cards: Sequence[str], backend: str, speed: Speed) -> Measured | None:
    """Return what was measured of a model on these cards: names of `--gpu`, "" for one without."""
    if not all(cards):
        return None
    work = speed.workload
    launch = Asked.of(model, cards, backend, speed.kind, depth=work.depth)
    if not launch.active:
        return None
    # The share of the weights that are on devices must be similar for rows to be comparable.
    launch = launch.sharing(1 - speed.in_ram / launch.active)
    token, prompt = nearest(launch.at(work.depth + work.prompt), "tg"), nearest(launch, "pp")
    if token is None and prompt is None:
        return None
    # Rows are of plain launches: one request, no draft, and no correction by own measurements.
    plain = speed.draft is None and work.requests == 1 and not speed.correction.runs
    pulled = drawn(launch, "tg", speed.generation, speed.generation_spread) if plain else None
    if pulled is not None:
        return Measured(token, prompt, *pulled)
    recent = plain and token is not None and not token.old
    outside = recent and token is not None and token.off(speed.generation_spread)
    return Measured(token, prompt, outside=outside)
