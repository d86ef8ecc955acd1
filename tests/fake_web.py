"""A web server on loopback, and a Hub of Hugging Face on two of them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Web:
    """A server on loopback. `files`: path -> bytes; `sizes`: path -> a larger size, filled up with
    zeros that are only sent when asked for; `answers`: path -> a function of the handler that
    answers instead."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.answers: dict = {}
        self.ranges = True
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.sent = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                path = self.path.partition("?")[0]
                try:
                    if path in outer.answers:
                        outer.answers[path](self)
                    elif path in outer.files:
                        outer.file(self, path)
                    else:
                        status(404)(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            # a client that has read enough goes away
            def handle_error(self, *args: object) -> None:
                pass

        self.http = Quiet(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def file(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        body = self.files[path]
        size = max(self.sizes.get(path, 0), len(body))
        first, last = 0, size - 1
        asked = handler.headers.get("Range")
        if asked and self.ranges:
            first, last = (int(n) for n in asked.removeprefix("bytes=").split("-"))
            last = min(last, size - 1)
            if first >= size:
                handler.send_response(416)
                handler.send_header("Content-Range", f"bytes */{size}")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        else:
            handler.send_response(200)
        handler.send_header("Content-Length", str(last + 1 - first))
        handler.end_headers()
        for at in range(first, last + 1, 1 << 16):
            end = min(at + (1 << 16), last + 1)
            piece = body[at:end]
            handler.wfile.write(piece + bytes(end - at - len(piece)))
            self.sent += end - at

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


def status(code: int, body: bytes = b"no", **headers: str):
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


class Repository:
    """USER/REPO on a Hub that leads to a store on another port."""

    def __init__(
        self,
        web: Web,
        store: Web,
        files: dict[str, bytes],
        revision: str = "main",
        sizes: dict[str, int] | None = None,
        name: str = "me/my-GGUF",
    ) -> None:
        self.environ = {"HF_ENDPOINT": web.url + "/", "HF_TOKEN": "hf_secret"}
        names = list(files)
        repository = name
        tree = f"/api/models/{name}/tree/{revision}"

        def listing(handler: BaseHTTPRequestHandler) -> None:
            query = urlsplit(handler.path).query
            page = names[2:] if "cursor" in query else names[:2]
            entries: list = [
                {"type": "file", "path": name, "size": len(files[name])} for name in page
            ]
            entries.append({"type": "directory", "path": "d.gguf"})
            following = f'<{web.url}{tree}?recursive=true&cursor=x>; rel="next"'
            more = {} if "cursor" in query or len(names) < 3 else {"Link": following}
            status(200, json.dumps(entries).encode(), **more)(handler)

        web.answers[tree] = listing
        for name, body in files.items():
            path = f"/{repository}/resolve/{revision}/{name}"
            web.answers[path] = status(302, Location=f"{store.url}/{name}?signature=1")
            store.files["/" + name] = body
            store.sizes["/" + name] = (sizes or {}).get(name, 0)
