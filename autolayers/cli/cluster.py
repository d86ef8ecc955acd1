"""`autolayers cluster FILE MODEL`: one llama-server over several machines."""

from __future__ import annotations

import os

from .. import state
from ..devices.cluster_file import asked
from ..devices.cluster_file import read as read_cluster
from ..errors import DoesNotFit, UsageError
from ..flags.check import read
from ..launch import cluster as launches
from ..output import emit, emit_json, say, say_all, show
from ..planner.compare.cluster import plan_cluster
from ..report.cluster import cluster_text
from ..report.table import Style
from ..report.text import shortage
from ..request import Request
from .model import load
from .words import form_of, other_words


def main(words: list[str]) -> int:
    """Print the plan, or write the files that start it on each machine; 5 if it does not fit."""
    arguments = read("cluster", words, os.environ)
    names = list(arguments.positional)
    # `cluster FILE -m MODEL`, as a pasted command has it
    if arguments.params.model and len(names) == 1:
        names.append(arguments.params.model)
    # The two in the wrong order are the usual mistake
    if len(names) != 2 or names[0].lower().endswith(".gguf"):
        raise UsageError(
            "name the cluster file and the model: autolayers cluster FILE.json MODEL.gguf [flags]"
        )
    if arguments.params.rpc:
        raise UsageError("the cluster file lists the RPC servers: omit --rpc")
    cluster = read_cluster(names[0])
    # Sizes that the running servers report now, not those of the file
    if arguments.own.get("ask"):
        cluster, notes = asked(cluster)
        say_all(notes)
    model = load(names[1], arguments)
    # devices in the file's order, which is that of --rpc, then the head's own
    request = Request.of(
        arguments, os.environ, devices=cluster.devices(), host=cluster.head.host
    ).said()
    # Sets of machines: fewer may be faster than all, since each costs network
    together = plan_cluster(model, request, cluster)
    # The best set is printed even where it does not fit: it says what is missing
    own, best = arguments.own, together.best
    form = form_of(arguments)
    if form not in ("compose", "systemd", "kubernetes", "lws") and (
        "output" in own or "image" in own
    ):
        raise UsageError("--output and --image need --format compose, systemd, kubernetes or lws")
    if form == "text":
        show(
            cluster_text(
                together,
                cluster.head.name,
                launches.commands(best),
                Style.here(),
                other_words(arguments),
            )
        )
    elif form == "json":
        emit_json(together.to_dict())
    elif form == "flags":
        emit(" ".join([*best.plan.flags, *other_words(arguments)]) + "\n")
    else:
        written = launches.files(
            form, best, cluster, arguments, str(own.get("image") or launches.IMAGE)
        )
        # Only files with RPC servers open a port
        if best.boxes:
            say(launches.OPEN)
        write(written, own.get("output"))
    if form not in ("text", "json"):
        say_all(best.plan.warnings)
    if not together.best.plan.fits:
        say(f"does not fit: {shortage(together.best.plan)}")
    return 0 if together.best.plan.fits else DoesNotFit.exit_code


def write(written: dict[str, str], directory: str | None) -> None:
    """Write the files to a directory, otherwise one after another to standard output."""
    if directory is None:
        for path, text in written.items():
            # A comment in YAML, INI and shell files alike
            emit(f"# ==> {path}\n{text}" if len(written) > 1 else text)
        return
    for path, text in written.items():
        at = os.path.join(directory, *path.split("/"))
        # e.g. "machine-b/compose.yaml"
        os.makedirs(os.path.dirname(at), exist_ok=True)
        state.write(at, text.encode())
        say(f"{at} written")
