"""Arrays, frames and tables come back exactly, or saving them fails with the reason."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from effectflow.checkpoint import NotSerializable
from effectflow.checkpoint.values import (
    KnownTypes,
    MalformedValue,
    check_savable,
    decode_json,
    digest_of,
    encode_json,
    from_tree,
    mismatch_of,
    plain_tree,
    render_tree,
    tables,
    to_tree,
)

NOTHING = KnownTypes()


def restored(value: object, types: KnownTypes = NOTHING) -> Any:
    return from_tree(decode_json(encode_json(to_tree(value, types=types))), types=types)


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.1),
        np.float64("nan"),
        np.float32(0.1),
        np.float16(-0.0),
        np.int8(-5),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.str_("Zoë"),
        np.bytes_(b"\xff"),
        np.bytes_(b"key\0"),
        np.str_("a\0"),
    ],
    ids=repr,
)
def test_a_scalar_comes_back_with_its_class(value: Any) -> None:
    again = restored(value)
    assert type(again) is type(value)
    assert again.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(3, 2))[:, ::-1],
        np.array([1.5, np.nan, -0.0, np.inf]),
        np.array(3),
        np.zeros((0, 4), dtype=np.float32),
        np.array(["a", "Zoë", ""]),
        np.array([b"a", b"\xff"]),
        np.array([1j, 2]),
        np.array(["2026-01-01", "NaT"], dtype="M8[ns]"),
        np.array([(1, 2.5, [1, 2])], dtype=[("n", "<i4"), ("x", ">f8"), ("pair", "<u2", (2,))]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_an_array_comes_back_with_its_type_and_shape(array: NDArray[Any]) -> None:
    again = restored([array])[0]
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()
    assert again.flags.writeable


def mixed_frame() -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "int": np.array([1, 2, 3], dtype="int8"),
            "null": pd.array([1, None, 3], dtype="Int64"),
            "float": [0.1, np.nan, np.inf],
            "text": ["a", None, "Zoë"],
            "object": pd.Series(["a", None, "b"], dtype=object),
            "time": pd.date_range("2026-10-25", periods=3, freq="h", tz="Europe/Berlin"),
            "category": pd.Categorical(["u", "v", "u"], ["w", "v", "u"], ordered=True),
            "month": pd.period_range("2026-01", periods=3, freq="M"),
        },
        index=pd.date_range("2026-01-01", periods=3, freq="D", name="day"),
    )
    frame.attrs["source"] = "sensor"
    return frame


@pytest.mark.parametrize(
    "frame",
    [
        mixed_frame(),
        mixed_frame().iloc[1:],
        pd.DataFrame(),
        pd.DataFrame({"a": [1]}, index=pd.RangeIndex(4, 10, 6)),
        pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_product([["x"], [1, 2]])),
        pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])),
    ],
    ids=["mixed", "part", "empty", "range", "index of two", "columns of two"],
)
def test_a_frame_of_pandas_comes_back_with_its_types_index_and_names(frame: pd.DataFrame) -> None:
    again = restored(frame)
    pd.testing.assert_frame_equal(again, frame, check_exact=True, check_freq=True)
    assert again.attrs == frame.attrs
    assert to_tree(again, types=NOTHING) == to_tree(frame, types=NOTHING)


@pytest.mark.parametrize(
    "name",
    [None, "", "size", 3, np.int64(3), 1.5, True, ("a", 1), ("a", np.int64(1))],
    ids=repr,
)
def test_a_series_comes_back_with_its_name(name: Any) -> None:
    series = pd.Series([1.5, None], index=["a", "b"], name=name)
    again = restored(series)
    pd.testing.assert_series_equal(again, series, check_exact=True)
    assert (type(again.name), repr(again.name)) == (type(name), repr(name))


@pytest.mark.parametrize("name", ["", "size", "column_0"])
def test_a_series_of_polars_comes_back_with_its_name(name: str) -> None:
    series = pl.Series(name, [1, None])
    assert restored(series).equals(series, check_names=True, check_dtypes=True)
    frame = pl.DataFrame({"column_1": [1], name: [2]})
    assert restored(frame).equals(frame)


def test_a_frame_of_polars_comes_back_with_its_schema() -> None:
    frame = pl.DataFrame({"a": [1, None], "b": ["x", "y"], "c": [[1.5], []]}).with_columns(
        pl.col("b").cast(pl.Enum(["y", "x"])).alias("d")
    )
    again = restored(frame)
    assert again.equals(frame)
    assert again.schema == frame.schema


def test_a_table_of_arrow_comes_back_with_its_metadata() -> None:
    table = pa.table({"a": [1, None], "b": [{"x": 1}, {"x": None}]})
    table = table.replace_schema_metadata({"unit": "m"})
    again = restored(table)
    assert again.equals(table, check_metadata=True)


def test_equal_tables_have_equal_digests_however_they_were_cut() -> None:
    table = pa.table({"a": [*range(20)], "b": [None if n % 3 else str(n) for n in range(20)]})
    whole = table.slice(3, 9)
    parts = pa.concat_tables([table.slice(3, 2), table.slice(5, 7)])
    anew = pa.table(whole.to_pydict())
    assert digest_of(whole) == digest_of(parts) == digest_of(anew)
    frames = [pl.from_arrow(each) for each in (whole, parts, anew)]
    assert len({digest_of(frame) for frame in frames}) == 1
    assert len({digest_of(each.to_pandas()) for each in (whole, parts, anew)}) == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array([object()]), "dtype object has no bytes of its own"),
        (np.array([("a", 1)], dtype=[("a", "O"), ("b", "i4")]), "has no bytes of its own"),
        (np.datetime64("2026-01-01", "ns"), "write numpy.asarray"),
        (np.complex128(1j), "write numpy.asarray"),
        (np.longlong(3), "write numpy.asarray"),
        (pd.Series([1], name=("a", 1, np.int64(1))), "its name .* would come back as another"),
        (
            pa.table({"a": [1, 2]}).select([]),
            r"its shape would come back as \(0, 0\), not \(2, 0\)",
        ),
        (pa.table({"a": pa.ListViewArray.from_arrays([0], [1], [1])}), "cast it to one without"),
        (np.ma.masked_array([1]), "MaskedArray cannot be saved"),
        (pd.DataFrame({"a": [1, "x"]}), "pandas.DataFrame cannot be saved: .*column a"),
        (pd.DataFrame({"a": [[1], [2]]}), "pandas.DataFrame cannot be saved: .*column name"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "Duplicate column names"),
        (
            pl.DataFrame({"a": [object()]}),
            "its column 'a' is of type Object: cast it or leave it out",
        ),
        (pl.DataFrame({str(n): [n] for n in range(60)} | {"59": [object()]}), "its column '59' is"),
        (pl.Series("big", [1], dtype=pl.Int128), "its column 'big' is of type Int128: cast it"),
        (
            pl.LazyFrame({"a": [1]}),
            "a LazyFrame cannot be saved: .* Save what `.collect\\(\\)` returns",
        ),
        (pd.Timestamp("2026"), "a Timestamp cannot be saved .* Convert it to a datetime, take"),
    ],
    ids=lambda case: case if isinstance(case, str) else type(case).__name__,
)
def test_what_would_come_back_otherwise_is_rejected(value: object, reason: str) -> None:
    with pytest.raises(NotSerializable, match=rf"\$\[0\]: .*{reason}"):
        to_tree([value], types=NOTHING)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 1000])
def test_all_rows_come_back(rows: int) -> None:
    table = pa.table({"a": pa.array(range(rows), pa.int64())})
    assert restored(table).equals(table)


def test_the_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_BYTES", 100)
    assert restored(np.zeros(100, dtype="u1")).size == 100
    with pytest.raises(NotSerializable, match="write it to a file, and save the path"):
        to_tree(np.zeros(101, dtype="u1"), types=NOTHING)


def b64(data: bytes | bytearray) -> str:
    return b64encode(data).decode()


def many_nulls() -> str:
    nulls = pa.Array.from_buffers(pa.null(), 2**30, [None])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"a": pa.null()})) as writer:
        writer.write_batch(pa.record_batch([nulls], ["a"]))
    return b64(sink.getvalue().to_pybytes())


def stream_of(column: Any) -> str:
    table, sink = pa.table({"a": column}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return b64(sink.getvalue().to_pybytes())


def views(kind: Any) -> str:
    """Return a column of the same text of 8 KiB in a thousand views, which take 16 bytes each."""
    text = b"x" * 8192
    view = len(text).to_bytes(4, "little") + text[:4] + bytes(8)
    buffers = [None, pa.py_buffer(view * 1000), pa.py_buffer(text)]
    return stream_of(pa.Array.from_buffers(kind, 1000, buffers))


def compressed(column: Any) -> str:
    table, sink = pa.table({"a": column}), pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return b64(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("name", ["pandas.DataFrame", "polars.DataFrame", "pyarrow.Table"])
@pytest.mark.parametrize(
    "column", [[0] * 1000, pa.array(["a" * 1000]).dictionary_encode()], ids=["batch", "dictionary"]
)
def test_compressed_tables_are_rejected(name: str, column: Any) -> None:
    more = [None] if name == "pandas.DataFrame" else []
    with pytest.raises(MalformedValue, match="it is compressed"):
        from_tree({"$table": [name, [1000, 1], compressed(column), *more]}, types=NOTHING)


LISTS_OF_NULLS = pa.ListArray.from_arrays(pa.array([0, 2**24], pa.int32()), pa.nulls(2**24))
FIXED_LISTS_OF_NULLS = pa.FixedSizeListArray.from_arrays(pa.nulls(2**24), 2**11)


@pytest.mark.parametrize(
    "content",
    [
        ["os.system", [1], ""],
        ["numpy.ndarray", [2**40], b64(b"abc"), "'<f8'"],
        ["numpy.ndarray", [-1], b64(b"abcdefgh"), "'<f8'"],
        ["numpy.ndarray", [1], b64(b"abcdefgh"), "'|O'"],
        ["numpy.ndarray", [1], b64(b"abcdefgh"), "__import__('os')"],
        ["numpy.ndarray", [1]],
        ["pandas.DataFrame", [1, 1], b64(b"ARROW"), None],
        ["pandas.DataFrame", [2**30, 1], many_nulls(), None],
        ["polars.DataFrame", [2**30, 1], many_nulls()],
        ["polars.DataFrame", [1, 1], b64(b"\xff\xff\xff\xff\x08\0\0\0junkjunk")],
        ["pyarrow.Table", [2**30, 1], many_nulls()],
        ["numpy.ndarray", [10**15], "", "'|V0'"],
        ["pandas.DataFrame", [1, 1], stream_of(LISTS_OF_NULLS), None],
        ["polars.DataFrame", [1, 1], stream_of(LISTS_OF_NULLS)],
        ["pandas.DataFrame", [2**13, 1], stream_of(FIXED_LISTS_OF_NULLS), None],
        ["pandas.DataFrame", [1000, 1], views(pa.string_view()), None],
        ["pyarrow.Table", [1000, 1], views(pa.binary_view())],
        ["pyarrow.Table", [2, 1], stream_of(pa.RunEndEncodedArray.from_arrays([2], [1]))],
        5,
    ],
    ids=lambda content: str(content)[:40],
)
def test_malformed_tables_are_rejected(content: Any) -> None:
    with pytest.raises(MalformedValue):
        from_tree([{"$table": content}], types=NOTHING)


@pytest.mark.parametrize(
    "table",
    [
        np.zeros((2, 3)),
        mixed_frame(),
        pl.DataFrame({"a": [1, None], "b": [["x"], []]}),
        pa.table({"a": pa.array(["x", "y"]).dictionary_encode()}),
    ],
    ids=lambda table: type(table).__module__,
)
def test_damaged_tables_are_rejected_or_are_other_tables(table: Any) -> None:
    random = Random(7)
    content: Any = cast("dict[str, Any]", to_tree(table, types=NOTHING))["$table"]
    for _ in range(50):
        damaged = bytearray(content[2])
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        with suppress(MalformedValue):
            from_tree(
                {"$table": [*content[:2], b64(damaged), *content[3:]]},
                types=NOTHING,
            )


@pytest.mark.parametrize("content", [["|O", 1], ["<f8", "x"], ["os", 1], [5], None])
def test_malformed_scalars_are_rejected(content: Any) -> None:
    with pytest.raises(MalformedValue):
        from_tree({"$scalar": content}, types=NOTHING)


@dataclass
class Measured:
    name: str
    values: NDArray[np.float64]
    best: np.float64
    table: pd.DataFrame


def test_arrays_and_frames_may_be_fields_of_records() -> None:
    types = KnownTypes.of(Measured)
    check_savable(Measured, types, path="$")
    measured = Measured("m", np.array([1.5]), np.float64(2), pd.DataFrame({"a": [1]}))
    again = restored(measured, types)
    assert again.best == 2
    assert again.values.tolist() == [1.5]
    assert digest_of(again) == digest_of(measured)
    assert mismatch_of(again, Measured) is None


def test_a_scalar_that_is_not_of_the_declared_class_says_how_to_convert_it() -> None:
    assert mismatch_of(np.float64(1.5), float) is None
    assert mismatch_of(np.int64(3), int) == (
        "",
        "np.int64(3) is not of the declared type int: write int(...)",
    )
    assert mismatch_of([np.float32(1.5)], list[float]) == (
        "[0]",
        "np.float32(1.5) is not of the declared type float: write float(...)",
    )


def test_tables_are_shown_by_their_shape() -> None:
    tree = to_tree({"array": np.zeros((2, 3)), "best": np.float64(1.5)}, types=NOTHING)
    assert render_tree(tree) == "{'array': numpy.ndarray(shape=(2, 3)), 'best': 1.5}"
    assert plain_tree(tree) == {"array": "numpy.ndarray(shape=(2, 3))", "best": 1.5}


def test_no_library_is_imported_for_other_values() -> None:
    code = (
        "import sys\n"
        "from decimal import Decimal\n"
        "from effectflow.checkpoint.values import KnownTypes, to_tree\n"
        "to_tree([Decimal('1'), {1: 2}], types=KnownTypes())\n"
        "assert not {'numpy', 'pandas', 'polars', 'pyarrow'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_frame_of_pandas_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotSerializable, match="is saved with pyarrow: pip install pyarrow"):
        to_tree(pd.DataFrame({"a": [1]}), types=NOTHING)
