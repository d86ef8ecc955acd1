"""The library over HTTP on loopback, for front ends: `autolayers serve`.

    GET  /openapi.json      this interface (OpenAPI 3.1)
    POST /plan              {"model", "flags", "explain"}: what --json prints
    POST /explain           {"log", "flags"}: what explain --json prints
    POST /choose            {"models", "flags"}: each file's choice, and which to take

`flags` are words, as on the command line, or an object by name: {"gpu": "rtx-3060", "ctx": 8192}.
Every POST needs the token as "Authorization: Bearer TOKEN". An error is {"error", "exit_code"}, the
command line's line and code; a key that a question has not is one.
"""

from __future__ import annotations

import json
import secrets
import time
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from .. import __version__
from ..api import choose, plan_within
from ..diagnosis.diagnosis import explain
from ..errors import AutolayersError, LaunchRefused, ModelError, UsageError
from ..flags.keywords import is_flag, words_of
from ..memory.meter import Meter
from ..planner.compare.choose import advise
from .engine import MAX_LOG
from .server import LOOK, MAX_QUESTION, TYPES, Handler, LocalServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..model import Model

    Answer = dict[str, Any]

MOST_MODELS = 64  # of one question
# All other errors are 409, such as DeviceError
_STATUS = {
    UsageError: HTTPStatus.BAD_REQUEST,
    LaunchRefused: HTTPStatus.UNPROCESSABLE_ENTITY,
    ModelError: HTTPStatus.NOT_FOUND,
}


class Service(LocalServer):
    """Answers on 127.0.0.1 only, a few questions at a time and none for a client that has gone.
    `token` "": a new one. Raises OSError if the port is taken."""

    def __init__(
        self,
        open_model: Callable[[str], Model],
        environ: Mapping[str, str],
        port: int = 0,
        token: str = "",
    ) -> None:
        super().__init__(port, _Handler, token)
        self.open_model, self.environ = open_model, environ

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, question: Answer, has_gone: Callable[[], bool]) -> Answer | None:
        """Return the answer, None if the client has gone before its turn. Raises
        AutolayersError."""
        # A misspelt key would be a plan without it: never silently ignored
        for name in question:
            if name not in _KEYS[path]:
                raise UsageError(_unknown(path, name))
        # A client that gave up must not cost the others a search
        with self.turn(has_gone) as waits:
            return _PATHS[path](self, question, has_gone) if waits else None

    def plan(self, question: Answer, has_gone: Callable[[], bool]) -> Answer:
        plan = plan_within(
            Watched(has_gone),
            self.open_model(_text(question, "model")),
            _words(question),
            self.environ,
            explain=question.get("explain") is not False,
        )
        return plan.to_dict()

    def explain(self, question: Answer, _: Callable[[], bool]) -> Answer:
        log = _text(question, "log")
        return explain(log.encode("utf-8", "replace"), words=_words(question, "explain")).to_dict()

    def choose(self, question: Answer, _: Callable[[], bool]) -> Answer:
        names = question.get("models")
        if (
            not isinstance(names, list)
            or not names
            or not all(isinstance(name, str) for name in names)
        ):
            raise UsageError('"models" is a list of names')
        if len(names) > MOST_MODELS:
            raise UsageError(f'"models" has {len(names)} names, at most {MOST_MODELS} are compared')
        choices = choose(
            [self.open_model(name) for name in names],
            _words(question, "choose"),
            environ=self.environ,
        )
        advice = advise(choices)
        return {
            "schema": 1,
            "autolayers": __version__,
            "files": [
                {"name": name, **choice.to_dict()}
                for name, choice in zip(names, choices, strict=True)
            ],
            "advice": {"take": names[advice.take] if advice else None},
        }


_KEYS = {
    "/plan": ("model", "flags", "explain"),
    "/explain": ("log", "flags"),
    "/choose": ("models", "flags"),
}


class Watched(Meter):
    """A budget that ends when the client goes: the rest of the search is then not measured."""

    def __init__(self, has_gone: Callable[[], bool]) -> None:
        super().__init__()
        self.has_gone = has_gone
        self._next = 0.0

    @property
    def exhausted(self) -> bool:
        # Asked thousands of times in a search: the socket is looked at five times a second
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK
            self.budget = -1 if self.has_gone() else self.budget
        return super().exhausted


_PATHS: dict[str, Callable[[Service, Answer, Callable[[], bool]], Answer]] = {
    "/plan": Service.plan,
    "/explain": Service.explain,
    "/choose": Service.choose,
}


class _Handler(Handler):
    server: Service

    def do_GET(self) -> None:
        if not self.from_here():
            return
        if urlsplit(self.path).path == "/openapi.json":
            self.send(HTTPStatus.OK, json.dumps(openapi(), indent=1).encode(), TYPES["json"])
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "GET /openapi.json says what there is")

    def do_POST(self) -> None:
        self.close_connection = True  # an unread body must not become the next request
        path = urlsplit(self.path).path
        if not self.from_here():
            return
        # Bytes: compare_digest refuses other characters than ASCII in a str
        given = self.headers.get("Authorization", "").encode()
        if not secrets.compare_digest(given, f"Bearer {self.server.token}".encode()):
            return self.refuse(
                HTTPStatus.UNAUTHORIZED, "Authorization: Bearer and the token of autolayers serve"
            )
        # After the token, so that nobody learns without one what there is
        if path not in _PATHS:
            return self.refuse(HTTPStatus.NOT_FOUND, f"POST {', '.join(_PATHS)}")
        # A log may be long, flags may not
        question = self.question(MAX_LOG if path == "/explain" else MAX_QUESTION)
        if question is None:
            return
        try:
            answer = self.server.answer(path, question, self.has_gone)
            if answer is not None:
                self.send(HTTPStatus.OK, json.dumps(answer).encode(), TYPES["json"])
        except AutolayersError as error:
            status = next(
                # A subclass has the status of its parent
                (_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS),
                HTTPStatus.CONFLICT,
            )
            body = {"error": str(error), "exit_code": error.exit_code}
            self.send(status, json.dumps(body).encode(), TYPES["json"])


def _text(question: Answer, name: str) -> str:
    value = question.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f'"{name}" is a text')
    return value


def _unknown(path: str, name: str) -> str:
    """Return why a key is refused. One that is a flag's name would otherwise be ignored, and the
    plan be for the server's own machine."""
    keys = ", ".join(f'"{key}"' for key in _KEYS[path])
    if is_flag(name, path.lstrip("/")):
        return (
            f'"{name:.60}" is a flag: "flags": {{"{name:.60}": ...}}; the keys of {path} are {keys}'
        )
    return f'unknown key "{name:.60}": those of {path} are {keys}'


def _words(question: Answer, command: str = "plan") -> list[str]:
    """Return the flags of a question. Raises UsageError."""
    flags = question.get("flags", [])
    # {"ctx": 8192} as Python's keywords
    if isinstance(flags, dict):
        return words_of(flags, command)
    if not isinstance(flags, list) or not all(isinstance(word, str) for word in flags):
        raise UsageError('"flags" is a list of words, or an object of flags by name')
    return flags


def openapi() -> Answer:
    """Return the interface as an OpenAPI document."""
    flags = {
        "description": "words, or flags by name",
        "oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}],
    }
    text = {"type": "string"}
    paths: dict[str, tuple[str, list[str], Answer]] = {
        "/plan": (
            "The best launch: the document of autolayers MODEL --json, schema 1",
            ["model"],
            {
                "model": {
                    **text,
                    "description": "a file, https://..., hf:USER/REPO[:QUANT] or ollama:NAME",
                },
                "flags": flags,
                "explain": {
                    "type": "boolean",
                    "description": "with reasons, alternatives and --fit's answer (default)",
                },
            },
        ),
        "/explain": (
            "Why a launch failed or is slow: the document of autolayers explain --json",
            ["log"],
            {"log": text, "flags": flags},
        ),
        "/choose": (
            "Which of these files to take",
            ["models"],
            {"models": {"type": "array", "items": text, "maxItems": MOST_MODELS}, "flags": flags},
        ),
    }
    error = {"type": "object", "properties": {"error": text, "exit_code": {"type": "integer"}}}

    def answers(description: str) -> Answer:
        wrong = {
            "description": "the command line's error and exit code",
            "content": {"application/json": {"schema": error}},
        }
        return {
            "200": {
                "description": description,
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            **{
                str(int(status)): wrong
                for status in sorted({*_STATUS.values(), HTTPStatus.CONFLICT})
            },
            "401": {"description": "no token, or another one"},
        }

    return {
        "openapi": "3.1.0",
        "info": {"title": "autolayers", "version": __version__},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": {
            path: {
                "post": {
                    "summary": summary,
                    "operationId": path.lstrip("/"),
                    "responses": answers(summary),
                    "requestBody": {
                        "required": True,
                        "content": {
                            "application/json": {
                                "schema": {
                                    "type": "object",
                                    "required": needed,
                                    "properties": fields,
                                    # Unknown keys are refused, so the document says it
                                    "additionalProperties": False,
                                }
                            }
                        },
                    },
                }
            }
            for path, (summary, needed, fields) in paths.items()
        },
    }
