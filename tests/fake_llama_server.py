"""A llama-server that replays recorded logs: copied into a test's directory, where scenario.json
says what to do.

    {"attempts": [{"log": "text of stderr", "code": 1}, {"log": "...", "serve": true}]}

Launch n takes attempt n (the last one for all later); `bytes`: hex instead of `log`; `kill`: the
signal it dies of; `serve`: answer /health, and /completion to who sends one of the keys, on --port
until a signal comes. Every launch's words are appended to calls.jsonl.
"""

import json
import os
import signal
import sys
import threading
import time

words = sys.argv[1:]
ready = threading.Event()
done = threading.Event()
interrupts = []
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
    signal.signal(
        getattr(signal, name), lambda number, frame: (interrupts.append(number), done.set())
    )

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "scenario.json")) as file:
    attempts = json.load(file)["attempts"]
with open(os.path.join(here, "calls.jsonl"), "a+") as file:
    file.seek(0)
    attempt = attempts[min(len(file.readlines()), len(attempts) - 1)]
    seen = {name: value for name, value in os.environ.items() if "LLAMA" in name}
    file.write(json.dumps({"words": words, "pid": os.getpid(), "environ": seen}) + "\n")


def serve(port):
    import http.server

    given = words[words.index("--api-key") + 1] if "--api-key" in words else ""
    keys = [key for key in (given or os.environ.get("LLAMA_API_KEY", "")).split(",") if key]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if ready.is_set() else 503)
            self.end_headers()
            self.wfile.write(b'{"status":"ok"}')

        def do_POST(self):
            if keys and self.headers["Authorization"] not in [f"Bearer {key}" for key in keys]:
                self.send_error(401)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                json.dumps({"content": "x", "timings": {"predicted_per_second": 42.25}}).encode()
            )

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


if attempt.get("serve") and "--port" in words:
    serve(int(words[words.index("--port") + 1]))
sys.stdout.write(attempt.get("stdout", ""))
sys.stdout.flush()
sys.stderr.buffer.write(
    bytes.fromhex(attempt["bytes"]) if "bytes" in attempt else attempt.get("log", "").encode()
)
sys.stderr.buffer.flush()
if "kill" in attempt:
    if attempt["kill"] != signal.SIGKILL:
        signal.signal(attempt["kill"], signal.SIG_DFL)
    os.kill(os.getpid(), attempt["kill"])
if attempt.get("serve"):
    time.sleep(attempt.get("delay", 0))
    ready.set()
    done.wait(60)
    time.sleep(0.1)  # a second signal, if one was sent, has time to arrive
    sys.stderr.write("signals: " + json.dumps(interrupts) + "\n")
    sys.stderr.flush()
raise SystemExit(attempt.get("code", 0))
