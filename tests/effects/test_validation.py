"""Validation gathers every error, in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from returns.result import Failure, Success

from effectflow import fail, pure
from effectflow.effects import Invalid, Valid, Validation

parts = st.one_of(
    st.integers().map(Valid), st.lists(st.text(max_size=3), min_size=1, max_size=3).map(Invalid)
)


@given(st.lists(parts, max_size=10))
def test_all_has_every_value_or_every_error_in_order(parts: list[Validation[str, int]]) -> None:
    errors = [error for part in parts if isinstance(part, Invalid) for error in part.errors]
    values = [part.value for part in parts if isinstance(part, Valid)]

    expected = Invalid(errors) if errors else Valid(tuple(values))
    assert Validation.all(*parts) == expected


@given(st.lists(parts, max_size=4), st.lists(parts, max_size=4))
def test_validations_nest(left: list[Any], right: list[Any]) -> None:
    nested = Validation.all(Validation.all(*left), Validation.all(*right))
    flat = Validation.all(*left, *right)

    if isinstance(flat, Invalid):
        assert nested == flat
    else:
        assert nested == Valid(
            (tuple(part.value for part in left), tuple(part.value for part in right))
        )


@given(parts)
def test_it_converts_to_and_from_results_and_effects(part: Validation[str, int]) -> None:
    match part:
        case Valid(value):
            assert part.to_result() == Success(value)
            assert part.to_effect().run_sync(None) == Success(value)
            assert Validation.from_result(Success(value)) == part
            assert Validation.from_effect(pure(value)).run_sync(None) == Success(part)
        case Invalid(errors):
            assert part.to_result() == Failure(errors)
            assert part.to_effect().run_sync(None) == Failure(errors)
            assert Validation.from_result(Failure(errors[0])) == Invalid(errors[:1])
            assert Validation.from_effect(fail(errors[0])).run_sync(None) == Success(
                Invalid(errors[:1])
            )
        case _:
            raise AssertionError(part)


@given(parts)
def test_to_result_and_from_result_are_inverses(part: Valid[int] | Invalid[str]) -> None:
    result = part.to_result()

    assert Validation.from_result(result) == part
    assert Validation.from_result(result).to_result() == result


@given(parts)
def test_to_effect_and_from_effect_are_inverses(part: Valid[int] | Invalid[str]) -> None:
    assert Validation.from_effect(part.to_effect()).run_sync(None) == Success(part)


@given(parts)
def test_fold_and_unwrap_or_take_it_apart(part: Valid[int] | Invalid[str]) -> None:
    assert part.fold(Valid, Invalid) == part
    assert part.unwrap_or("none") == part.fold(lambda value: value, lambda _: "none")


def test_one_error_many_errors_and_errors_by_field_have_constructors() -> None:
    assert Invalid.one("no name") == Invalid(["no name"])
    assert Invalid.one("no name").errors == ("no name",)
    by_field = {"name": ["too short", "no digit"], "age": ["missing"]}
    assert Invalid.from_fields(by_field).to_fields() == by_field
    joined = Validation.all(Invalid.from_fields(by_field), Invalid.one(("name", "taken")))
    assert isinstance(joined, Invalid)
    assert joined.to_fields() == {"name": ["too short", "no digit", "taken"], "age": ["missing"]}


@pytest.mark.parametrize("error", ["no name", b"no name", 7, ValueError("no name")])
def test_a_single_error_in_place_of_a_list_is_rejected(error: Any) -> None:
    with pytest.raises(TypeError, match=r"Invalid\.one\(error\)"):
        Invalid(error)
    with pytest.raises(TypeError, match=r"Invalid\.one\(error\)"):
        Invalid.from_fields({"name": error})


def test_a_mapping_in_place_of_a_list_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"Invalid\.from_fields"):
        Invalid({"name": ["no name"]})


def test_values_and_errors_are_mapped() -> None:
    assert Valid(2).map(str) == Valid("2")
    assert Invalid(["a", "b"]).map_err(str.upper) == Invalid(["A", "B"])
    assert positive(2).and_then(lambda n: positive(n - 3)) == Invalid(["-1"])
    assert Validation.traverse([1, -1, -2], positive) == Invalid(["-1", "-2"])
    assert Validation.traverse([1, 2], positive) == Valid([1, 2])


def positive(n: int) -> Valid[int] | Invalid[str]:
    return Valid(n) if n > 0 else Invalid([str(n)])


def test_invalid_requires_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Invalid([])
