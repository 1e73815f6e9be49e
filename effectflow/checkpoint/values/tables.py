"""Arrays, data frames and tables of numpy, pandas, polars and pyarrow as bytes, and back.

Arrays are saved as their bytes, and tables in the stream format of Arrow. Nothing is pickled, so parts
that are Python objects are rejected. This module imports none of these libraries unless a value, or what
is saved, belongs to it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from struct import unpack_from
from typing import Any, NamedTuple, cast

from effectflow.checkpoint.values.plain import bytes_of

MAX_BYTES = 32 * 1024 * 1024
"""The number of bytes in one array or table. Data of more belongs into a file."""

_MAX_ITEMS_WITHOUT_BYTES = 10_000_000
"""The number of items that a value may have although they take less than one bit each."""

_SCALAR_KINDS = "biufUS"
"""The kinds of types of numpy whose scalars have an exact value in Python."""

Content = list[Any]
"""What is saved: the class, the shape, the data as bytes, and what else there is to know."""


def name_of_table(cls: type[Any]) -> str | None:
    """Return the name of a class of tables, such as `pandas.DataFrame`; None for any other class."""
    name = f"{cls.__module__.partition('.')[0]}.{cls.__name__}"
    library = sys.modules.get(name.partition(".")[0])
    return name if name in _FORMS and getattr(library, cls.__name__, None) is cls else None


def is_numpy_scalar(cls: type[Any]) -> bool:
    """Return whether the values of a class are scalars of numpy, such as `numpy.float64`."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and cls.__module__ == "numpy" and issubclass(cls, numpy.generic)


def take_scalar(value: Any) -> tuple[str, Any]:
    """Return the type of a numpy scalar as text, and its value. Raises ValueError if it has none."""
    dtype = value.dtype
    # Its item() has no NUL at the end.
    item = value[:] if isinstance(value, str | bytes) else value.item()
    is_exact = isinstance(item, bool | int | float | str | bytes) and dtype.kind in _SCALAR_KINDS
    # A numpy.longlong would come back as another class, as both have the same type as text.
    if not is_exact or build_scalar(dtype.str, item).__class__ is not value.__class__:
        name = f"numpy.{value.__class__.__name__}"
        raise ValueError(f"a {name} is saved only as an array: write numpy.asarray(...)")
    return dtype.str, item


def build_scalar(dtype: str, item: Any) -> Any:
    """Return the numpy scalar of this type and value."""
    kind = _library("numpy").dtype(dtype)
    if kind.kind not in _SCALAR_KINDS:
        raise ValueError(f"no scalar is saved with the type {dtype}")
    return kind.type(item)


def take_table(value: Any) -> Content:
    """Return an array, frame, series or table as what is saved.

    Raises ValueError if another value would come back, or none.
    """
    name = name_of_table(value.__class__)
    assert name is not None
    form = _FORMS[name]
    try:
        data, *more = form.take(value)
    except ImportError as missing:
        raise ValueError(
            f"a {name} is saved with {missing.name}: pip install {missing.name}"
        ) from None
    except Exception as error:
        raise ValueError(f"a {name} cannot be saved: {str(error) or repr(error):.300}") from error
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"a {name} of {len(data):,} bytes is too large, the limit is {MAX_BYTES:,}: write it to a "
            "file, and save the path"
        )
    return [name, [*value.shape], data, *more]


def build_table(content: Content) -> Any:
    """Return the value of what `take_table` returned. Raises an exception for anything else."""
    name, shape, given, *more = content
    data = bytes_of(given)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data):,} bytes")
    built = _FORMS[name].build(data, shape, *more)
    if [*built.shape] != shape:
        raise ValueError(f"its shape is {built.shape}, not {shape}")
    return built


class _Form(NamedTuple):
    """How the values of one class are saved.

    Attributes:
        take: returns the bytes of a value, and what else is needed to build it.
        build: returns the value, given the bytes, the shape, and what else there is.
    """

    take: Callable[[Any], tuple[Any, ...]]
    build: Callable[..., Any]


def _library(name: str) -> Any:
    """Return a module of an optional library, of which type checkers need not know."""
    return import_module(name)


def _take_array(array: Any) -> tuple[Any, ...]:
    npy = _library("numpy.lib.format")
    dtype = array.dtype
    described = None if dtype.hasobject or dtype.metadata else npy.dtype_to_descr(dtype)
    if described is None or npy.descr_to_dtype(described) != dtype:
        raise ValueError(f"its dtype {dtype} has no bytes of its own: use another dtype")
    return array.tobytes(), repr(described)


def _build_array(data: bytes, shape: list[int], described: str) -> Any:
    from ast import literal_eval

    dtype = _library("numpy.lib.format").descr_to_dtype(literal_eval(described))
    items = math.prod(shape)
    if dtype.hasobject or items * dtype.itemsize != len(data):
        raise ValueError(f"its bytes are not those of {dtype} in the shape {shape}")
    _check_count(items, data)
    # Of a bytearray, because an array of bytes could not be changed.
    return _library("numpy").ndarray(tuple(shape), dtype, bytearray(data))


def _take_arrow(table: Any) -> tuple[bytes]:
    pyarrow = _library("pyarrow")
    # Taken row by row, so that equal tables have equal bytes, however they are cut and whatever there is
    # in the place of a null.
    rows = table.take(_numbers(len(table))).combine_chunks()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    again = _read_arrow(data)
    if not again.schema.equals(table.schema, check_metadata=True):
        raise ValueError("its schema would come back as another one")
    if again.shape != table.shape:
        # The stream does not tell the number of rows if there are no columns.
        raise ValueError(f"its shape would come back as {again.shape}, not {table.shape}")
    return (data,)


def _numbers(count: int) -> Any:
    """Return the numbers below `count`, without an object for each."""
    pyarrow, compute = _library("pyarrow"), _library("pyarrow.compute")
    numbers = pyarrow.array([0], pyarrow.int64())
    while len(numbers) < count:
        numbers = pyarrow.concat_arrays([numbers, compute.add(numbers, len(numbers))])
    return numbers[:count]


def _read_arrow(data: bytes) -> Any:
    _refuse_compressed(data)
    table = _library("pyarrow").ipc.open_stream(data).read_all()
    table.validate(full=True)
    items = sum(_items_of(chunk) for column in table.columns for chunk in column.chunks)
    _check_count(max(len(table), items), data)
    return table


def _items_of(array: Any) -> int:
    """Return the number of items in an array of Arrow, as another library may hold them.

    Raise ValueError for types whose items may share their bytes, and so become much more.
    """
    types, kind = _library("pyarrow").types, array.type
    if any(getattr(types, f"is_{name}")(kind) for name in _SHARING_TYPES):
        raise ValueError(f"it has the type {kind}: cast it to one without views or runs")
    if hasattr(array, "storage"):
        return _items_of(array.storage)
    if types.is_dictionary(kind):
        return len(array) + _items_of(array.dictionary)
    if types.is_struct(kind) or types.is_union(kind):
        parts = [array.field(number) for number in range(kind.num_fields)]
    else:
        parts = [array.values] if hasattr(array, "values") else []
    return max(len(array), sum(map(_items_of, parts)))


_SHARING_TYPES = (
    "string_view",
    "binary_view",
    "list_view",
    "large_list_view",
    "run_end_encoded",
)


def _check_count(items: int, data: bytes) -> None:
    """Raise ValueError if a few bytes would become many items."""
    if items > max(8 * len(data), _MAX_ITEMS_WITHOUT_BYTES):
        raise ValueError(f"it has {items:,} items in {len(data):,} bytes")


def _build_arrow(data: bytes, _: object) -> Any:
    return _read_arrow(data)


def _take_pandas(frame: Any) -> tuple[Any, ...]:
    import json

    table = _library("pyarrow").Table.from_pandas(frame)
    known = json.loads(table.schema.metadata[b"pandas"])
    # Otherwise equal arguments of a step would have another digest with another version of a library.
    del known["creator"], known["pandas_version"]
    (data,) = _take_arrow(table.replace_schema_metadata({b"pandas": json.dumps(known)}))
    frequency = getattr(frame.index, "freqstr", None)
    again = _build_pandas(data, frame.shape, frequency)
    # A cell that is a list would come back as an array, and NaN among text as another null.
    _library("pandas.testing").assert_frame_equal(again, frame, check_exact=True, check_freq=True)
    if again.attrs != frame.attrs:
        raise ValueError("its attrs would come back as others")
    return data, frequency


def _build_pandas(data: bytes, _: object, frequency: str | None) -> Any:
    frame = _read_arrow(data).to_pandas()
    if frequency is not None and frame.index.freq is None:
        frame.index.freq = frequency
    return frame


def _take_pandas_series(series: Any) -> tuple[Any, ...]:
    name = series.name
    data, frequency = _take_pandas(series.to_frame("" if name is None else name))
    for has_name in (False,) if name is None else (True, _PLAIN):
        if _typed(_build_pandas_series(data, None, frequency, has_name).name) == _typed(name):
            return data, frequency, has_name
    raise ValueError(f"its name {name!r} would come back as another one: use a str")


def _build_pandas_series(data: bytes, _: object, frequency: str | None, has_name: object) -> Any:
    series = _build_pandas(data, _, frequency).iloc[:, 0]
    if not has_name:
        series.name = None
    elif has_name == _PLAIN:
        series.name = _plain(series.name)
    return series


_PLAIN = "plain"
"""Stands for a name of a series without scalars of numpy, as which the numbers in names come back."""


def _plain(name: Any) -> Any:
    if isinstance(name, tuple):
        return tuple(map(_plain, cast("tuple[Any, ...]", name)))
    return name.item() if is_numpy_scalar(name.__class__) else name


def _typed(name: Any) -> object:
    """Return what is equal for names of the same value and class."""
    if isinstance(name, tuple):
        return [*map(_typed, cast("tuple[Any, ...]", name))]
    return name.__class__, repr(name)


def _take_polars(frame: Any) -> tuple[bytes]:
    empty = frame.clear()
    if not _keeps_schema(empty):
        name = next(name for name in empty.columns if not _keeps_schema(empty.select(name)))
        raise ValueError(
            f"its column {name!r} is of type {frame.schema[name]}: cast it or leave it out"
        )
    return _take_arrow(frame.to_arrow())


def _keeps_schema(empty: Any) -> bool:
    """Return whether a frame without rows comes back with its schema. Python objects would not."""
    try:
        again = _build_polars(*_take_arrow(empty.to_arrow()), empty.shape)
    except ImportError:
        raise
    except Exception:
        return False
    return bool(again.schema == empty.schema)


def _build_polars(data: bytes, _: object) -> Any:
    table = _read_arrow(data)
    names = table.column_names
    try:
        # It would call an unnamed column `column_0`.
        frame = _library("polars").from_arrow(table.rename_columns([*map(str, range(len(names)))]))
    except BaseException as panic:
        # What its code in Rust raises for malformed data is no Exception.
        if type(panic).__name__ != "PanicException":
            raise
        raise ValueError(str(panic)) from None
    frame.columns = names
    return frame


def _take_polars_series(series: Any) -> tuple[bytes]:
    return _take_polars(series.to_frame())


def _build_polars_series(data: bytes, shape: object) -> Any:
    return _build_polars(data, shape).to_series()


def _refuse_compressed(stream: bytes) -> None:
    """Raise ValueError if a part of an Arrow stream is compressed: a few bytes could become gigabytes.

    The stream consists of messages: a marker, the length of a flatbuffer, that, and a body.
    """
    position = 0
    while position < len(stream):
        marker, length = unpack_from("<II", stream, position)
        message = position + 8
        if marker != _ARROW_MARKER or message + length > len(stream):
            raise ValueError("it is not a stream of Arrow")
        position = message + length
        if length == 0:
            continue
        root = _table_at(stream, message)
        kind_at, header_at, body_at = (_field_of(stream, root, number) for number in (1, 2, 3))
        if body_at is not None:
            position += unpack_from("<Q", stream, body_at)[0]
        if kind_at is None or header_at is None or stream[kind_at] not in (_BATCH, _DICTIONARY):
            continue
        batch = _table_at(stream, header_at)
        if stream[kind_at] == _DICTIONARY:
            data_at = _field_of(stream, batch, 1)
            if data_at is None:
                continue
            batch = _table_at(stream, data_at)
        if _field_of(stream, batch, 3) is not None:
            raise ValueError("it is compressed")


_ARROW_MARKER = 0xFFFFFFFF
_DICTIONARY, _BATCH = 2, 3


def _table_at(buffer: bytes, position: int) -> int:
    """Return the position of the table of a flatbuffer to which the offset at a position leads."""
    return position + unpack_from("<I", buffer, position)[0]


def _field_of(buffer: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a table in a flatbuffer; None if it has its default."""
    fields = table - unpack_from("<i", buffer, table)[0]
    entry = 4 + 2 * number
    if entry >= unpack_from("<H", buffer, fields)[0]:
        return None
    offset = unpack_from("<H", buffer, fields + entry)[0]
    return table + offset if offset else None


_FORMS: Mapping[str, _Form] = {
    "numpy.ndarray": _Form(_take_array, _build_array),
    "pandas.DataFrame": _Form(_take_pandas, _build_pandas),
    "pandas.Series": _Form(_take_pandas_series, _build_pandas_series),
    "polars.DataFrame": _Form(_take_polars, _build_polars),
    "polars.Series": _Form(_take_polars_series, _build_polars_series),
    "pyarrow.Table": _Form(_take_arrow, _build_arrow),
}
