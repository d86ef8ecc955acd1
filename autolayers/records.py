"""The part of `dataclasses` that the hot path uses, for a tenth of its start-up time.

`dataclasses` imports `inspect`, `ast`, `dis` and `re` and compiles source text for every class:
together more than half of the time of a short command. This module builds equal classes from
closures, which still work with the real module's `fields`, `replace` and `asdict`. Type checkers
see the real module. Left out: slots, ordering, `InitVar`, `KW_ONLY` and field options other than
defaults. `lazy` is `functools.cached_property` without its imports.
"""

from __future__ import annotations

from operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MISSING: Any = object()
_set = object.__setattr__  # a frozen record's own refuses


class FrozenInstanceError(AttributeError):
    """Someone tried to change a frozen record."""


class _Factory:
    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _Fields:
    """`__dataclass_fields__`, made when the real module asks for it."""

    def __get__(self, instance: object, owner: Any) -> Any:
        import dataclasses

        rows: list[Any] = []
        for name, default in owner.__record_fields__.items():
            if default is _MISSING:
                rows.append((name, object))
            elif isinstance(default, _Factory):
                rows.append((name, object, dataclasses.field(default_factory=default.make)))
            else:
                rows.append((name, object, dataclasses.field(default=default, hash=None)))
        return vars(dataclasses.make_dataclass(owner.__name__, rows))["__dataclass_fields__"]


class _Signature:
    """`__signature__`, made when `inspect` or `help` asks for it."""

    def __get__(self, instance: object, owner: Any) -> Any:
        from inspect import Parameter, Signature

        types: dict[str, str] = {}
        for base in reversed(owner.__mro__):
            types.update(base.__dict__.get("__annotations__", {}))  # noqa: RUF063
        return Signature(
            [
                Parameter(
                    name,
                    Parameter.POSITIONAL_OR_KEYWORD,
                    annotation=types.get(name, Parameter.empty),
                    default=Parameter.empty
                    if default is _MISSING
                    else default.make
                    if isinstance(default, _Factory)
                    else default,
                )
                for name, default in owner.__record_fields__.items()
            ]
        )


def _field(*, default: Any = _MISSING, default_factory: Any = _MISSING, repr: bool = True) -> Any:
    return default if default_factory is _MISSING else _Factory(default_factory)


def _refuse_set(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_del(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _dataclass(cls: Any = None, /, *, frozen: bool = False) -> Any:
    """Return the class with __init__, __repr__, __eq__ and, if frozen, __hash__ over its annotated
    fields."""
    if cls is None:
        return lambda cls: _dataclass(cls, frozen=frozen)
    fields = _fields(cls)
    names = tuple(fields)
    # In C: searches compare and hash records all the time.
    values_of = itemgetter(*names) if names else lambda fields: ()
    methods = {"__init__": _init(cls.__name__, fields), **_by_values(cls, names, values_of)}
    if not frozen:
        methods["__hash__"] = None
    for name, method in methods.items():
        # What the class defines itself stays.
        if name not in cls.__dict__ or (name == "__hash__" and "__eq__" not in cls.__dict__):
            setattr(cls, name, method)
    if frozen:
        cls.__setattr__ = _refuse_set
        cls.__delattr__ = _refuse_del
    cls.__record_fields__ = fields
    setattr(cls, "__match_args__", names)  # noqa: B010
    cls.__values_of__ = values_of
    # made on demand: the real module would be imported for it
    cls.__dataclass_fields__ = _Fields()
    cls.__signature__ = _Signature()
    return cls


def _fields(cls: Any) -> dict[str, Any]:
    """Return the default of each field, those of the base classes first; takes factories from the
    class."""
    fields: dict[str, Any] = {}
    # a subclass adds its fields after those of its bases
    for base in reversed(cls.__mro__[1:]):
        fields.update(base.__dict__.get("__record_fields__", {}))
    for name, annotation in cls.__dict__.get("__annotations__", {}).items():  # noqa: RUF063
        if not annotation.startswith("ClassVar"):
            fields[name] = cls.__dict__.get(name, _MISSING)
            # the class itself must not have it as an attribute
            if isinstance(fields[name], _Factory):
                delattr(cls, name)
    return fields


def _defaults(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """Return the default values by field, and the functions that make a default by field."""
    plain = {}
    made = {}
    for name, value in fields.items():
        if isinstance(value, _Factory):
            made[name] = value.make
        elif value is not _MISSING:
            plain[name] = value
    return plain, made


def _init(title: str, fields: dict[str, Any]) -> Any:
    """Return __init__ of a class with these fields."""
    names = tuple(fields)
    plain, made = _defaults(fields)
    known_names = frozenset(names)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        # the hot path: all fields by position
        if len(args) == len(names) and not kwargs:
            _set(self, "__dict__", dict(zip(names, args)))  # noqa: B905 (strict takes as long)
            return
        values = plain.copy()
        if args:
            # Raises TypeError for too many values, or a second one of a field.
            if len(args) > len(names):
                raise TypeError(f"{title}() takes {len(names)} values but {len(args)} were given")
            if kwargs and not kwargs.keys().isdisjoint(names[: len(args)]):
                raise TypeError(f"{title}() got multiple values for one of {names[: len(args)]}")
            values.update(zip(names, args, strict=False))
        if kwargs:
            if not known_names.issuperset(kwargs):
                unknown = min(kwargs.keys() - known_names)
                raise TypeError(f"{title}() got an unexpected keyword argument {unknown!r}")
            values.update(kwargs)
        for name, make in made.items():
            if name not in values:
                values[name] = make()
        if len(values) < len(names):
            missing = [name for name in names if name not in values]
            raise TypeError(f"{title}() is missing {missing}")
        _set(self, "__dict__", values)

    return __init__


def _by_values(cls: Any, names: tuple[str, ...], values_of: Callable[[Any], Any]) -> dict[str, Any]:
    """Return __repr__, __eq__ and __hash__ of a class with these fields."""

    def __repr__(self: Any) -> str:
        return (
            f"{cls.__qualname__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in names)})"
        )

    def __eq__(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values_of(self.__dict__) == values_of(other.__dict__)

    def __hash__(self: Any) -> int:
        return hash(values_of(self.__dict__))

    return {"__repr__": __repr__, "__eq__": __eq__, "__hash__": __hash__}


def _replace(record: Any, /, **changes: Any) -> Any:
    """Return a copy with some fields changed."""
    cls = record.__class__
    names = cls.__match_args__
    # of a class with its own __init__
    if len(names) < 2 or cls.__init__.__module__ != __name__:
        return cls(**{**{name: record.__dict__[name] for name in names}, **changes})
    if not cls.__record_fields__.keys() >= changes.keys():
        raise TypeError(
            f"{cls.__name__}() got an unexpected keyword argument "
            f"{min(changes.keys() - cls.__record_fields__.keys())!r}"
        )
    # without __init__: the values are complete already
    copy = cls.__new__(cls)
    values = cls.__values_of__(record.__dict__)  # one of each name
    _set(copy, "__dict__", dict(zip(names, values)) | changes)  # noqa: B905
    return copy


def as_json(record: Any) -> dict[str, Any]:
    """Return a record's fields by name as JSON has them: a tuple is a list, a record what its
    to_dict says."""
    return {name: _plain(record.__dict__[name]) for name in record.__match_args__}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


class _Lazy:
    """A property that is computed once and then kept in the instance."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: object, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: object = None) -> Any:
        if instance is None:
            return self
        # an attribute of the instance hides a non-data descriptor, so this runs once
        value = instance.__dict__[self.name] = self.compute(instance)
        return value


if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
    from functools import cached_property as lazy
else:
    dataclass, field, replace, lazy = _dataclass, _field, _replace, _Lazy

__all__ = ["FrozenInstanceError", "as_json", "dataclass", "field", "lazy", "replace"]
