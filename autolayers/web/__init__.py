"""The planner as a page: the same page over a server on loopback, or as static files with Python in
the browser.

    autolayers web MODEL.gguf  # cli/web.py: server.py answers, on this machine's devices and files
    # build.py: static files; static/worker.js runs the engine in Pyodide
    python -m autolayers.web build DIR

Both use engine.py, which answers JSON questions in JSON.
"""
