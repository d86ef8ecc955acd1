"""A llama-bench that says what scenario.json next to it says: copied into a test's directory.

    [{"words": "-ngl 0", "prompt": 1e6, "token": 1e5}, {"words": "", "does": "hang"}]

The first entry whose words are in the command counts; `does`: fail, hang, kill, nonsense, jump
(times longer than it ran), other (another test's rows). Every run's words are appended to
bench.jsonl.
"""

import json
import os
import signal
import sys
import time

words = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "bench.jsonl"), "a") as file:
    file.write(json.dumps(words) + "\n")
with open(os.path.join(here, "scenario.json")) as file:
    entry = next(
        entry for entry in json.load(file) if f"{entry['words']} " in " ".join(["", *words, ""])
    )
does = entry.get("does", "")
value = {flag: int(words[words.index(flag) + 1]) for flag in ("-p", "-n", "-d", "-r")}
if does == "fail":
    print("main: error: failed to load model 'm.gguf'", file=sys.stderr)
    sys.exit(1)
if does == "hang":
    time.sleep(600)
if does == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if does == "nonsense":
    print('Segmentation fault? \x1b[2J { "n_prompt": NaN')
    sys.exit(0)
for kind, tokens in (("prompt", value["-p"]), ("token", value["-n"])):
    ns = int(tokens / entry.get(kind, 1e6) * 1e9) * (10**6 if does == "jump" else 1)
    print(
        json.dumps(
            {
                "build_commit": "abcdef12",
                "build_number": 10900,
                "cpu_info": "A CPU",
                "model_filename": "/home/me/m.gguf",
                "n_prompt": tokens if kind == "prompt" else 0,
                "n_gen": tokens + (does == "other") if kind == "token" else 0,
                "n_depth": value["-d"],
                "samples_ns": [ns] * value["-r"],
            }
        )
    )
