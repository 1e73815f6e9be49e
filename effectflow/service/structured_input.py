"""Make the input of a workflow from the JSON that people write. Pydantic validates each part."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, Flag
from functools import cache, lru_cache, partial
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast

import orjson
from pydantic import (
    AfterValidator,
    PlainValidator,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import SchemaValidator, core_schema

from effectflow.checkpoint import Checkpoints
from effectflow.checkpoint.values import (
    Codec,
    KnownTypes,
    MalformedValue,
    ValueOptions,
    from_tree,
    of_type,
)
from effectflow.checkpoint.values.classes import is_record, record_of
from effectflow.checkpoint.values.declared import field_types, name_of_type, required_keys
from effectflow.effects.errors import Copyable
from effectflow.effects.signatures import UnresolvedName, meaning_of, type_hints
from effectflow.machines import StateMachine
from effectflow.service.environment import AnyWorkflow


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a part of some data.

    Attributes:
        place: the keys and indices that lead to the part.
        text: what is wrong. It does not show the data, which may be a secret.
    """

    place: tuple[str | int, ...]
    text: str

    def __str__(self) -> str:
        """Return it with its place, such as `Field required @ $.items[3].price`."""
        return f"{self.text} @ ${''.join(map(_step, self.place))}"


class DoesNotFit(Copyable, ValueError):
    """Plain data does not describe a value of a type.

    Attributes:
        problems: what is wrong with each part.
    """

    def __init__(self, what: str, annotation: object, problems: Sequence[Problem]) -> None:
        found = "; ".join(map(str, problems))
        super().__init__(f"{what} does not fit {name_of_type(annotation)}: {found}")
        self.problems = tuple(problems)


def input_of(workflow: AnyWorkflow, data: object, checkpoints: Checkpoints) -> Any:
    """Return the input of a workflow that plain data describes, as `structure_as` makes it.

    For a state machine, that is the state to begin in, of the first class that fits: the class of the
    initial state, then the classes that transitions leave, then others. None is the initial state.
    """
    options = checkpoints.value_options
    if not isinstance(workflow, StateMachine):
        return structure_as(workflow.blueprint.input_type, data, options)
    if data is None:
        return None
    machine, reasons = cast("StateMachine[Any, Any, Any]", workflow), list[str]()
    for kind in machine.state_types:
        try:
            return machine.begin(structure_as(kind, data, options, what="it")).initial
        except ValueError as error:
            reasons.append(str(error))
    found = "; ".join(dict.fromkeys(reasons))
    raise ValueError(f"the input does not fit a state of {machine.name!r}: {found}")


def structure_as(
    annotation: object, data: object, options: ValueOptions, *, what: str = "the input"
) -> Any:
    """Return `data` as the annotated type, or unchanged without an annotation.

    Parameters:
        annotation: the type.
        data: plain data, such as parsed JSON.
        options: the codecs and the encryption for values.
        what: what the error calls the data.

    Records are objects with the parameters of their classes, enums the values or names of members, dates
    and times ISO 8601 text. A timedelta is a number of seconds, and bytes are base64 text. Numbers are
    not read from text, nor text from numbers. Of a union, the first type that fits is taken. Models and
    types of pydantic have the rules that they declare. The value of a class with a codec is made of what
    `encode` returns: of the type of its annotation, if it has one. Any value may also be in its saved
    form, such as `{"$object": ["Order", {...}]}`, which names its class.

    Raises DoesNotFit, a ValueError, with the path of each part that does not fit.
    """
    if annotation in (None, NoneType):
        return data
    try:
        return TypeAdapter[Any](_part(annotation, options)).validate_python(data)
    except ValidationError as error:
        problems = _problems(error)
    except RecursionError:
        problems = [Problem((), "it is nested too deeply")]
    except (Exception, SystemExit) as error:
        # Of a validator or a default; pydantic takes ValueError for a problem only.
        problems = [Problem((), f"the code of a class raised {error!r}")]
    # Not from the error, which may show a secret.
    raise DoesNotFit(what, annotation, problems)


def _problems(error: ValidationError) -> list[Problem]:
    """Return what is wrong with each part. The data is left out, since it may be a secret."""
    return [
        Problem(each["loc"], each["msg"].removeprefix("Value error, "))
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    ]


def _step(key: str | int) -> str:
    if key == "[key]":
        # The step before this one is that key.
        return ""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _part(annotation: Any, options: ValueOptions) -> Any:
    """Return an annotation that makes pydantic read a part of the annotated type as `structure_as`."""

    @cache
    def reader() -> Callable[[Any], Any]:
        # Not earlier, because a class may have parts of its own type.
        if isinstance(annotation, type):
            return _class_reader(annotation, options)
        return _reader(annotation, options)

    def read(data: Any) -> Any:
        if data.__class__ is dict and [str(key)[:1] for key in data] == ["$"]:
            return _from_saved(data, annotation, options)
        return reader()(data)

    return Annotated[Any, PlainValidator(read)]


def _reader(annotation: Any, options: ValueOptions) -> Callable[[Any], Any]:
    try:
        return TypeAdapter(_readable(annotation, options)).validator.validate_python
    except PydanticSchemaGenerationError:
        return partial(_refuse, annotation)


_class_reader = lru_cache(maxsize=256)(_reader)
"""Makes a class that has parts of its own type read them all with one reader."""


def _from_saved(data: Any, annotation: Any, options: ValueOptions) -> Any:
    types = replace(KnownTypes.of(annotation), options=options)
    try:
        return of_type(from_tree(data, types=types), annotation)
    except MalformedValue as error:
        place = error.path.removeprefix("$")
        raise ValueError(f"{error.reason}{f', at {place}' if place else ''}") from None


def _readable(annotation: Any, options: ValueOptions) -> Any:
    """Return an annotation that pydantic knows, made of parts."""
    kind: Any = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if kind is Annotated:
        return Annotated[(_part(annotation.__origin__, options), *annotation.__metadata__)]
    if kind in (Union, UnionType):
        return _union(annotation, options)
    if kind is Literal:
        return _choice([(getattr(each, "value", each), each) for each in arguments])
    if kind in (Iterable, Collection):
        kind = list
    if not _is_class(kind):
        meant = meaning_of(kind)
        return Any if meant is None else _part(meant, options)
    if kind in options.by_class:
        return _encoded(options.by_class[kind], options)
    if hasattr(kind, "__get_pydantic_core_schema__") or hasattr(kind, "__pydantic_validator__"):
        return _from_json(annotation)
    # Not by `issubclass` itself, from which type checkers infer parts that are unknown.
    is_a: Callable[[Any], bool] = partial(issubclass, kind)
    if is_a(Enum):
        choices = [(each.value, each) for each in kind] + [*kind.__members__.items()]
        # Several flags together have a number, and no name.
        return _choice(choices, kind if is_a(Flag) else None)
    if typing.is_typeddict(kind) or is_record(kind):
        return _record(kind, field_types(kind, arguments), options)
    if is_a(Mapping):
        key, value = arguments or (Any, Any)
        # JSON has only text as keys, which may be the text of a number.
        read_key = key if key in (int, float) else _part(key, options)
        return GenericAlias(kind, (read_key, _part(value, options)))
    if is_a(Collection) and not is_a(str | bytes):
        given = arguments or ((Any, ...) if kind is tuple else (Any,))
        return GenericAlias(kind, tuple(i if i is ... else _part(i, options) for i in given))
    return _atom(kind)


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and not isinstance(kind, UnresolvedName)


def _from_json(kind: Any, **config: Any) -> Any:
    # In JSON, pydantic reads times, ids, paths and the like from text, also if it is strict.
    adapter = TypeAdapter[Any](kind, config=cast(Any, config or None))
    return Annotated[Any, PlainValidator(lambda data: adapter.validate_json(_json_of(data)))]


def _json_of(data: Any) -> bytes:
    try:
        return orjson.dumps(data)
    except TypeError:
        # A number of more than 64 bits, or no plain data.
        return json.dumps(data, default=_refuse_data).encode()


def _refuse_data(data: object) -> Any:
    raise ValueError(f"a {type(data).__name__} is not plain data")


def _atom(kind: Any) -> Any:
    if kind is datetime:
        # Not by pydantic, whose times have a zone class of its own.
        return Annotated[str, AfterValidator(datetime.fromisoformat)]
    # Pydantic does not know the subclasses of these.
    basic = next((each for each in (bool, int, float, str) if issubclass(kind, each)), kind)
    try:
        # A timedelta is a number only if that is not strict.
        read = _from_json(basic, strict=kind is not timedelta, val_json_bytes="base64")
    except PydanticSchemaGenerationError:
        if kind is object or inspect.isabstract(kind) or getattr(kind, "_is_protocol", False):
            return Any
        return Annotated[Any, PlainValidator(partial(_refuse, kind))]
    return read if kind is basic else Annotated[read, AfterValidator(kind)]


def _refuse(kind: object, _: Any) -> Any:
    raise ValueError(
        f"a {name_of_type(kind)} cannot be made from JSON: pass Checkpoints(codecs=...) a Codec for "
        "it, or take plain data as the input, and make it in the workflow"
    )


def _encoded(codec: Codec[Any], options: ValueOptions) -> Any:
    """Read what `encode` returns, and decode it."""

    def decode(parts: Any) -> Any:
        try:
            value = codec.decode(parts)
        except Exception as error:
            raise ValueError(f"the codec {codec.tag!r} raised {error!r}") from None
        if value.__class__ is not codec.kind:
            raise ValueError(f"the codec {codec.tag!r} did not return a {codec.kind.__name__}")
        return value

    returned = type_hints(codec.encode).get("return", Any)
    return Annotated[_part(returned, options), AfterValidator(decode)]


def _choice(choices: list[tuple[Any, Any]], numbered: Any = None) -> Any:
    """Read one of these choices from the plain data beside it, or from its number."""

    def choose(data: Any) -> Any:
        if numbered is not None and data.__class__ is int:
            return numbered(data)
        for plain, choice in choices:
            if plain.__class__ is data.__class__ and plain == data:
                return choice
        raise ValueError(f"it is not one of {', '.join(repr(plain) for plain, _ in choices)}")

    return Annotated[Any, PlainValidator(choose)]


def _union(union: Any, options: ValueOptions) -> Any:
    """Read the first type that fits. The errors of pydantic's own unions do not name the types well."""
    choices = typing.get_args(union)
    left = [
        (each, TypeAdapter[Any](_part(each, options))) for each in choices if each is not NoneType
    ]

    def read(data: Any) -> Any:
        if data.__class__ in choices and data.__class__ in (bool, int, float, str, NoneType):
            return data
        problems: list[str] = []
        for choice, adapter in left:
            try:
                return adapter.validate_python(data)
            except ValidationError as error:
                if len(left) == 1:
                    raise
                problems += [f"{name_of_type(choice)}: {each}" for each in _problems(error)]
        raise ValueError(f"it is none of {name_of_type(union)} ({', '.join(problems)})")

    return Annotated[Any, PlainValidator(read)]


def _record(kind: Any, hints: Mapping[str, Any], options: ValueOptions) -> Any:
    """Read the arguments of a class from an object, and call the class with them."""
    if typing.is_typeddict(kind):
        names, required = {name: name for name in hints}, required_keys(kind)
    else:
        names = {key: name for name, key in record_of(kind).parameters.items() if key}
        parameters = inspect.signature(kind).parameters.values()
        required = {each.name for each in parameters if each.default is each.empty}
    # Pydantic accepts the TypedDict of typing only from Python 3.12 on, so this is its schema.
    fields = {
        key: core_schema.typed_dict_field(
            TypeAdapter(_part(hints.get(name, Any), options)).core_schema, required=key in required
        )
        for key, name in names.items()
    }
    arguments = SchemaValidator(core_schema.typed_dict_schema(fields, extra_behavior="forbid"))

    def read(data: Any) -> Any:
        if tuple in kind.__mro__ and data.__class__ is list and len(data) <= len(names):
            data = dict(zip(names, data, strict=False))
        given = arguments.validate_python(data)
        try:
            return kind(**given)
        except Exception as error:
            raise ValueError(str(error) or repr(error)) from None

    return Annotated[Any, PlainValidator(read)]
