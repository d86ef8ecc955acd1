"""Real programs that run the files of a fleet: llama-server of a machine's compose.yaml, and the
balancers."""

from __future__ import annotations

import http.client
import subprocess
import time
from pathlib import Path

import pytest
from control_groups import Group
from support import FIXTURES

CHAT = FIXTURES / "tiny" / "chat.gguf"
FILES = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg", "litellm": "litellm.yaml"}
BOX = {
    "host": {"total": 16 << 30, "cores": 1, "bandwidth": 10e9},
    "count": 3,
    "address": "127.0.0.{}",
}


class Server:
    """The llama-server of a machine's compose.yaml, in a group that has its mem_limit. Its folders
    are where they are mounted from, and it listens at the machine's address, as no container has
    one of its own here."""

    def __init__(
        self, file: Path, address: str, program: Path, group: Group | None, log: Path
    ) -> None:
        yaml = pytest.importorskip("yaml")
        (service,) = yaml.safe_load(file.read_text())["services"].values()
        (mount,) = service["volumes"]
        self.words = [
            str(program),
            *(word.replace(mount["target"], mount["source"]) for word in service["command"]),
        ]
        self.words[self.words.index("--host") + 1] = address
        assert f":{self.port}:" in service["ports"][0]
        self.address, self.group, self.log = address, group, log
        self.slots = int(self.words[self.words.index("-np") + 1])
        self.limit = int(service["mem_limit"].removesuffix("m")) << 20
        if group is not None:
            group.holds(self.limit)
        self.start()

    @property
    def port(self) -> str:
        return self.words[self.words.index("--port") + 1]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.words,
                stdout=log,
                stderr=log,
                preexec_fn=None if self.group is None else self.group.enter,
            )

    def answers(self, within: float = 60.0) -> float:
        """Seconds until it is healthy."""
        begin = time.monotonic()
        while time.monotonic() < begin + within:
            asked = http.client.HTTPConnection(self.address, int(self.port), timeout=5)
            try:
                asked.request("GET", "/health")
                if asked.getresponse().status == 200:
                    return time.monotonic() - begin
            except OSError:
                assert self.process.poll() is None, self.log.read_text(errors="replace")[-2000:]
            finally:
                asked.close()
            time.sleep(0.05)
        raise AssertionError("not healthy")


def balancer_of(kind: str, place: Path, port: int) -> list[str]:
    """The words with which a balancer runs its file here, at this port."""
    (path,) = place.glob(
        {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}.get(kind, "litellm.yaml")
    )
    text = path.read_text()
    if kind == "litellm":
        return ["--config", str(path), "--port", str(port)]
    text = text.replace("8000", str(port))
    if kind == "nginx":  # its files are in places where only root may write
        kept = "".join(
            f"{part}_temp_path {part};"
            for part in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        text = "pid nginx.pid;\ndaemon off;\n" + text.replace(
            "http {", f"http {{ access_log off; {kept}"
        )
    path.write_text(text)
    before = ["-p", str(place), "-e", "error.log", "-c"] if kind == "nginx" else ["-f"]
    return [*before, str(path)]
