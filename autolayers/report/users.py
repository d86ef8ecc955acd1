"""What numbers of people get, as a table for a terminal."""

from __future__ import annotations

from ..units import human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..work.speed import Speed


def each_words(speed: Speed) -> str:
    """Return what each of the people gets, with the prediction's uncertainty."""
    assert speed.requests is not None
    row: Mapping[str, Any] = speed.requests.to_dict()
    # factor: how far off the rate may be, either way
    rate, users, factor = (
        row["per_request_tokens_per_second"],
        row["users"],
        speed.generation_spread,
    )
    each = f"for each of {users} users" if users > 1 else "for one user"
    total = f", {row['total_tokens_per_second']:.0f} in all" if users > 1 else ""
    return (
        f"about {rate:.1f} tokens/s {each} ({rate / factor:.1f} to {rate * factor:.1f}){total}   "
        f"first token within {row['seconds_to_first_token']:.1f} s"
    )


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
    rows.insert(0, ("users", "tokens/s each", "in all", "first token", "caches"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
