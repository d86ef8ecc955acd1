"""Writes docs/api.md: the public names of the package, from their docstrings.

python docs/make.py api
"""

from __future__ import annotations

import inspect

import autolayers

HEAD = """# The library

Made by `python docs/make.py api`; do not edit.

    import autolayers
    plan = autolayers.plan("model.gguf", gpu="24GiB", ctx=8192)  # without gpu: this machine
    plan.fits, plan.flags, plan.speed.generation

All public names come from `import autolayers` and are loaded on first use; `help(autolayers.plan)`
shows types. `Plan.to_dict()` returns the [`--json` document](reading-a-plan.md#the-json) (to which
the command adds `other_flags`, given flags that touch no memory), schema 1: keys may be added, but
are never removed and never change their meaning.
"""


def render() -> str:
    names = [name for name in autolayers.__all__ if not name.startswith("_")]
    found = {name: getattr(autolayers, name) for name in names}
    functions = [name for name in names if inspect.isfunction(found[name])]
    errors = [
        name
        for name in names
        if isinstance(found[name], type) and issubclass(found[name], Exception)
    ]
    classes = [name for name in names if name not in functions and name not in errors]
    pages = [
        HEAD,
        "## Functions\n",
        *[_function(name, found[name]) for name in functions],
        "## Classes\n",
        *[_class(name, found[name]) for name in classes],
        "## Errors\n",
        _text(_doc(inspect.getmodule(autolayers.AutolayersError)).partition("\n\n")[2]),
    ]
    return "\n".join(pages)


def _function(name: str, function: object) -> str:
    """Without types, which help() shows."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    shown = inspect.Signature(plain)
    return f"### `{name}`\n\n    {name}{shown}\n\n{_text(_doc(function))}"


def _class(name: str, cls: type) -> str:
    lines = [f"### `{name}`\n", _text(_doc(cls))]
    fields = list(getattr(cls, "__record_fields__", ()))
    if fields:
        lines += [f"Fields: {', '.join(f'`{field}`' for field in fields)}.\n"]
    # those of base classes first, each once
    found = {
        member: value
        for base in reversed(cls.__mro__)
        for member, value in vars(base).items()
        if not member.startswith("_") and member not in fields and _doc(_function_of(value))
    }
    lines += [
        f"- `{name}.{member}{_call(value)}`: "
        f"{' '.join(_doc(_function_of(value)).split('>>>')[0].split())}"
        for member, value in found.items()
    ]
    return "\n".join(lines) + ("\n" if found else "")


def _function_of(member: object) -> object:
    """The function behind a method or property."""
    return (
        getattr(member, "__func__", None)
        or getattr(member, "fget", None)
        or getattr(member, "compute", member)
    )


def _call(member: object) -> str:
    function = _function_of(member)
    if function is not getattr(member, "__func__", member):
        return ""  # a property
    known = inspect.signature(function).parameters  # type: ignore[arg-type]
    parameters = [name for name in known if name not in ("self", "cls")]
    return f"({', '.join(parameters)})"


def _doc(of: object) -> str:
    return "" if isinstance(of, (str, int, tuple)) else inspect.getdoc(of) or ""


def _text(doc: str) -> str:
    """A docstring as Markdown: examples and indented paragraphs as code."""
    parts = []
    for part in doc.split("\n\n"):
        code = part.startswith(">>> ") or " = " in part or "   " in part
        parts.append(_code(inspect.cleandoc("\n" + part)) if code else part + "\n")
    return "\n".join(parts)


def _code(text: str) -> str:
    return f"```python\n{text.rstrip()}\n```\n"
