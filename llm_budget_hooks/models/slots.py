"""`quick_init`: frozen dataclasses that are made in half the time, for those that every call makes."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def quick_init(cls: type[T]) -> type[T]:
    """Let a frozen dataclass with slots write to its slots when it is made.

    The `__init__` of `dataclasses` looks up ``object.__setattr__``, and that the slot, for every field of every object.

    Args:
        cls: all or none of its fields are keyword-only, and no default is made by a factory.
    """
    wrote = cls.__init__
    every = fields(cls)  # type: ignore[arg-type]  # a dataclass, which TypeVar cannot say
    given = ", ".join(field.name for field in every if field.init)
    sets = [f" set_{field.name}(self, {field.name if field.init else repr(field.default)})" for field in every]
    space: dict[str, Any] = {f"set_{field.name}": vars(cls)[field.name].__set__ for field in every}
    star = "*, " if every[0].kw_only else ""
    checks = [" self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    exec("\n".join([f"def __init__(self, {star}{given}):", *sets, *checks]), space)  # noqa: S102 - as dataclasses do
    made = space["__init__"]
    for name in ("__defaults__", "__kwdefaults__", "__annotations__", "__qualname__", "__module__", "__doc__"):
        setattr(made, name, getattr(wrote, name))
    setattr(cls, "__init__", made)  # noqa: B010 - an assignment is what mypy does not allow here
    return cls
