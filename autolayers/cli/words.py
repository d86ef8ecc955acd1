"""Lines about a plan and the user's words that several commands print."""

from __future__ import annotations

import sys

from ..flags.parse import Arguments, items
from ..output import say
from ..records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..planner import Plan


def models_named(arguments: Arguments) -> list[str]:
    """Return the models that are named; a pasted llama-server command has its model after -m."""
    return list(arguments.positional) or list(filter(None, [arguments.params.model]))


def form_of(arguments: Arguments, shown: bool = False) -> str:
    """Return the format that is asked for: text where a person reads it, otherwise flags."""
    usual = "text" if shown or sys.stdout.isatty() else "flags"
    return str(arguments.own.get("format") or usual)


def other_words(arguments: Arguments) -> list[str]:
    """Return the user's words that do not touch memory, without secrets; a line on stderr says
    where to put those."""
    if not arguments.rest:
        return []
    from ..launch.secrets import without_secrets

    # What is printed ends in histories, logs and posts: --api-key must not
    words, secrets = without_secrets(arguments.rest)
    for name in secrets:
        say(f"{name} is left out of the output: set it in llama-server's environment")
    return words


def without_verbose(arguments: Arguments) -> tuple[Arguments, bool]:
    """Return the arguments without -v, and whether it was given: it is llama-server's flag too, but
    where a page is printed it means the whole page."""
    # Read as flags again: a word -v may be another flag's value, as in `--alias -v`
    flags = list(items(arguments.rest, None))
    others = [item for item in flags if item.canonical != "-v"]
    return replace(arguments, rest=tuple(word for item in others for word in item.words)), len(
        others
    ) < len(flags)


def warnings_of(plan: Plan) -> list[str]:
    """Return a plan's warnings and hints, for outputs that cannot carry them."""
    if plan.fits:
        lines = [*plan.warnings, *filter(None, [plan.paid]), *plan.idle]
        # report.text is imported only where there is something for it to say
        if plan.faster is None and plan.smaller is None:
            return lines
        from ..report.text import hints

        return [*lines, *hints(plan)]
    # What is missing, then what helps: exit code 5 alone tells a script nothing
    from ..report.text import remedy_words, shortage

    return [
        *plan.warnings,
        f"does not fit: {shortage(plan)}",
        *(
            f"it fits with {remedy_words(remedy, n_ctx=plan.breakdown.n_ctx)}"
            for remedy in plan.remedies
        ),
    ]
