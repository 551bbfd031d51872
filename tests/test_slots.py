"""What is made by way of its slots is all that a frozen dataclass is."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from llm_budget_hooks import Call, ConfigurationError, Usage

CALL = Call(model="gpt-4o-mini", tenant="acme", input_tokens=3, amount="0.10")
USAGE = Usage(input_tokens=3, service_tier="flex", exact=False)


@pytest.mark.parametrize("one", [CALL, USAGE])
def test_it_is_equal_to_its_copies_and_cannot_be_changed(one: Call | Usage) -> None:
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one)), replace(one)):
        assert other == one
        assert hash(other) == hash(one)
    with pytest.raises(FrozenInstanceError):
        one.input_tokens = 4  # type: ignore[misc]  # that is what is tested


@pytest.mark.parametrize("one", [CALL, USAGE])
def test_what_is_not_given_is_as_its_field_says(one: Call | Usage) -> None:
    made = Call(model="m") if isinstance(one, Call) else Usage()
    assert all(getattr(made, field.name) == field.default for field in fields(made) if field.name != "model")
    given = [name for name, each in inspect.signature(type(one)).parameters.items() if each.kind is each.KEYWORD_ONLY]
    assert given == [field.name for field in fields(made) if field.init]


def test_what_cannot_be_is_refused() -> None:
    assert CALL.amount_nusd == 100_000_000
    assert replace(CALL, amount=None).amount_nusd is None
    with pytest.raises(TypeError, match="model"):
        Call()  # type: ignore[call-arg]  # as above
    with pytest.raises(TypeError, match="modell"):
        Call(modell="m")  # type: ignore[call-arg]  # as above
    with pytest.raises(ConfigurationError, match="output_tokens"):
        Usage(output_tokens=-1)
