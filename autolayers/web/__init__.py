"""The planner as a page: the same page over a server on loopback, or as static files with Python in the browser.

    autolayers web MODEL.gguf                    # cli/web.py: server.py answers, on this machine's devices and files
    python -m autolayers.web build DIR           # build.py: static files; static/worker.js runs the engine in Pyodide

Both engines are engine.py; both take a question as JSON and answer in JSON.
"""
