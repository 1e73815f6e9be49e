"""The type variables of overloads, which all end at eight, and types of parameters that need them."""

from collections.abc import Callable
from typing import Never, TypeAlias

from typing_extensions import TypeVar

E1 = TypeVar("E1")
E2 = TypeVar("E2")
E3 = TypeVar("E3")
E4 = TypeVar("E4")
E5 = TypeVar("E5")
E6 = TypeVar("E6")
E7 = TypeVar("E7")
E8 = TypeVar("E8")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
A4 = TypeVar("A4")
A5 = TypeVar("A5")
A6 = TypeVar("A6")
A7 = TypeVar("A7")
A8 = TypeVar("A8")

T = TypeVar("T")

# Those that a call leaves open are `Never`, which adds nothing to a union.
X1 = TypeVar("X1", bound=Exception, default=Never)
X2 = TypeVar("X2", bound=Exception, default=Never)
X3 = TypeVar("X3", bound=Exception, default=Never)
X4 = TypeVar("X4", bound=Exception, default=Never)
X5 = TypeVar("X5", bound=Exception, default=Never)
X6 = TypeVar("X6", bound=Exception, default=Never)
X7 = TypeVar("X7", bound=Exception, default=Never)
X8 = TypeVar("X8", bound=Exception, default=Never)

ErrorClasses: TypeAlias = (
    type[X1]
    | tuple[type[X1]]
    | tuple[type[X1], type[X2]]
    | tuple[type[X1], type[X2], type[X3]]
    | tuple[type[X1], type[X2], type[X3], type[X4]]
    | tuple[type[X1], type[X2], type[X3], type[X4], type[X5]]
    | tuple[type[X1], type[X2], type[X3], type[X4], type[X5], type[X6]]
    | tuple[type[X1], type[X2], type[X3], type[X4], type[X5], type[X6], type[X7]]
    | tuple[type[X1], type[X2], type[X3], type[X4], type[X5], type[X6], type[X7], type[X8]]
)
"""A class of exceptions, or a tuple of up to eight. It spares eight overloads wherever one is taken."""

Fitting: TypeAlias = T | Callable[[T], Never]
"""A value of the type that another parameter has decided.

mypy infers a type variable from parameters without a function first. So the union, which only a function
that never returns fits otherwise, makes it compare the value with the type of the other parameter and
name both types, instead of saying that it "cannot infer" the variable.
"""
