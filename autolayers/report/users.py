"""What numbers of people get, as a table for a terminal."""

from __future__ import annotations

from ..units import human
from .table import ranged, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..work.speed import Speed


def each_words(speed: Speed) -> str:
    """Return what each of the people gets, with the prediction's uncertainty."""
    assert speed.requests is not None
    row: Mapping[str, Any] = speed.requests.to_dict()
    users, rate = row["users"], row["per_request_tokens_per_second"]
    each, total = "one user", ""
    if users > 1:
        each = f"each of {users} users"
        total = f", {row['total_tokens_per_second']:.0f} in all"
    span = ranged(rate, speed.generation_spread, "{:.1f}".format, f" tokens/s for {each}")
    return f"about {span}{total}   first token within {row['seconds_to_first_token']:.1f} s"


def users_table(speed: Speed) -> list[str]:
    """Return a line for each number of people; none if a promise decides."""
    if speed.requests is None:
        return []
    answer: Mapping[str, Any] = speed.requests.to_dict()
    rows = [
        (
            str(row["users"]),
            f"{row['per_request_tokens_per_second']:.1f}",
            f"{row['total_tokens_per_second']:.0f}",
            f"{row['seconds_to_first_token']:.1f} s",
            # Bytes of the caches of all users
            human(row["context"]),
        )
        for row in answer["table"]
    ]
    if not rows:
        return []
    head = ("users", "tokens/s each", "in all", "first token", "caches")
    return table(head, rows, left=())
