"""What is done about files that are damaged or differ: each by its message."""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.errors import BadConfig, BadFile, SchemaMismatch
from gpupipe.io import inspect
from gpupipe.io.stores import Manifest
from tests.io.tables import damage, plain, values
from tests.raising import raises

GOOD = pa.table({"n": [1, 2], "s": ["a", "b"]})


def whole(table: pa.Table = GOOD) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "truncated": (lambda: whole()[:-30], r"damaged or cut off: \d+ bytes, the footer cannot be read"),
    "half": (lambda: whole()[: len(whole()) // 2], "damaged or cut off"),
    "magic": (
        lambda: b"\x89PNG" + whole()[4:-4] + b"\x89PNG",
        r"not a Parquet file, its first bytes differ, got b'\\x89",
    ),
    "text": (lambda: b"n,s\n1,a\n", r"not a Parquet file, its first bytes differ, got b'n,s"),
    "nothing": (lambda: b"", r"the file is empty \(0 bytes\)"),
}


@pytest.mark.parametrize("kind", BAD)
def test_an_unreadable_file_is_an_error_or_told_of(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    make, message = BAD[kind]
    inputs = tmp_path / "in"
    inputs.mkdir()
    for name in ("a", "c"):
        (inputs / f"{name}.parquet").write_bytes(whole())
    bad = inputs / "b.parquet"
    bad.write_bytes(make())
    with pytest.raises(BadFile, match=rf"b\.parquet: {message}"):
        gp.read_parquet(inputs)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        dataset = gp.read_parquet(inputs, on_bad="skip")
    assert len(dataset) == 4
    (note,) = dataset.rejected
    assert (note.file, note.action) == (str(bad), "skipped")
    assert pc.match_substring_regex(pa.scalar(note.reason), message).as_py()
    assert f"1 file is not read as it is: {bad}: skipped, {note.reason}" in caplog.text
    assert str(note) in repr(inspect(dataset))
    assert html.escape(str(note)) in inspect(dataset)._repr_html_()
    # The rows of the others are who they would be beside a good file.
    assert [span.file for part in dataset.partitions for span in part.spans] == [0, 2]


def test_a_quarantined_file_is_named_beside_what_is_written(tmp_path: Path) -> None:
    inputs, out = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    (inputs / "a.parquet").write_bytes(whole())
    (inputs / "b.parquet").write_bytes(b"")
    dataset = gp.read_parquet(inputs, on_bad="quarantine")
    expected = {"file": str(inputs / "b.parquet"), "reason": "the file is empty (0 bytes)"}
    manifest = dataset.write_parquet(out)
    assert "b.parquet: quarantined, the file is empty" in repr(manifest)
    assert Manifest.read(out).notes == manifest.notes == dataset.rejected
    assert [json.loads(line) for line in (out / "_quarantine.jsonl").read_text().splitlines()] == [expected]
    dataset.write_parquet(tmp_path / "one.parquet")
    assert json.loads((tmp_path / "one.quarantine.jsonl").read_text()) == expected
    assert sorted(path.name for path in out.iterdir()) == ["_manifest.json", "_quarantine.jsonl", "part-00000.parquet"]
    # The file comes again, whole: its rows are added, and nothing is said against it any more.
    (inputs / "b.parquet").write_bytes(whole())
    manifest = gp.read_parquet(inputs, on_bad="quarantine").write_parquet(out)
    assert (manifest.num_done, manifest.rows_out, manifest.notes) == (1, 4, ())
    assert not (out / "_quarantine.jsonl").exists()
    parts = sorted(out.glob("part-*"))
    (inputs / "z.parquet").write_bytes(b"PAR1")
    manifest = gp.read_parquet(inputs, on_bad="quarantine").write_parquet(out)
    assert "z.parquet" in (out / "_quarantine.jsonl").read_text() and "z.parquet" in repr(manifest)
    assert sorted(out.glob("part-*")) == parts and "z.parquet" in (out / "_manifest.json").read_text()
    written = (out / "_manifest.json").stat().st_mtime_ns
    gp.read_parquet(inputs, on_bad="quarantine").write_parquet(out)
    assert (out / "_manifest.json").stat().st_mtime_ns == written, "nothing has changed since"
    assert values(gp.read_parquet(out), "n") == [1, 2, 1, 2]


def test_skipped_files_leave_no_file_beside_the_output(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(whole())
    (tmp_path / "b.parquet").write_bytes(b"")
    gp.read_parquet(tmp_path, on_bad="skip").write_parquet(tmp_path / "_out")
    assert not (tmp_path / "_out" / "_quarantine.jsonl").exists()


def test_nothing_but_bad_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(b"")
    with pytest.raises(BadFile, match=r"none of 2 files can be used; this one: the file is empty"):
        gp.read_parquet(tmp_path, on_bad="skip")
    for name, value in (("on_bad", "cast"), ("on_mismatch", "ignore")):
        with pytest.raises(BadConfig, match=rf"read\({name}=\): no such choice, got '{value}'.\nExpected 'raise', "):
            gp.read_parquet(tmp_path, **{name: value})


def test_damage_within_the_rows_is_always_an_error(tmp_path: Path) -> None:
    pq.write_table(GOOD, tmp_path / "a.parquet")
    damage(tmp_path / "a.parquet", 0, "n")
    dataset = gp.read_parquet(tmp_path, on_bad="skip")
    assert dataset.rejected == ()
    with pytest.raises(BadFile, match=r"a\.parquet: row group 0 cannot be read"):
        dataset.compute()


def test_no_rows_and_another_order_of_columns_are_no_fault(tmp_path: Path) -> None:
    for name, table in (("a", GOOD.slice(0, 0)), ("b", GOOD.select(["s", "n"])), ("c", GOOD)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    dataset = gp.read_parquet(tmp_path)
    assert plain(dataset.compute()) == GOOD.to_pylist() * 2
    assert dataset.rejected == ()


@pytest.mark.parametrize(
    ("table", "message", "told"),
    [
        (pa.table({"n": [3.0], "s": ["c"]}), "column 'n' is float64.\nExpected int64, as in", "float64, read as int64"),
        (pa.table({"n": ["3"], "s": ["c"]}), "column 'n' is string", "string, read as int64"),
        (pa.table({"n": pa.array([3], pa.int8()), "s": ["c"]}), "column 'n' is int8", "int8, read as int64"),
        (pa.table({"s": ["c"]}), "column 'n' is not there", "not there and missing throughout"),
    ],
)
def test_another_schema_is_an_error_cast_or_skipped(tmp_path: Path, table: pa.Table, message: str, told: str) -> None:
    for name, content in (("a", GOOD), ("b", table), ("c", GOOD)):
        pq.write_table(content, tmp_path / f"{name}.parquet")
    with pytest.raises(SchemaMismatch, match=rf"b\.parquet: {message}"):
        gp.read_parquet(tmp_path)
    skipped = gp.read_parquet(tmp_path, on_mismatch="skip")
    assert plain(skipped.compute()) == GOOD.to_pylist() * 2
    assert [(note.file, note.action) for note in skipped.rejected] == [(str(tmp_path / "b.parquet"), "skipped")]
    aside = gp.read_parquet(tmp_path, on_mismatch="quarantine")
    assert [(note.file, note.action) for note in aside.rejected] == [(str(tmp_path / "b.parquet"), "quarantined")]
    aside.write_parquet(tmp_path / "_aside")
    line = json.loads((tmp_path / "_aside" / "_quarantine.jsonl").read_text())
    assert message.startswith(line["reason"])
    cast = gp.read_parquet(tmp_path, on_mismatch="cast")
    added = {"n": None if "n" not in table.column_names else 3, "s": "c"}
    assert plain(cast.compute()) == [*GOOD.to_pylist(), added, *GOOD.to_pylist()]
    assert {item.name: item.dtype for item in cast.schema} == {"n": "int64", "s": "string"}
    assert cast.rejected == ()
    (note,) = inspect(cast).notes
    assert (note.file, note.action) == (str(tmp_path / "b.parquet"), "cast")
    assert told in note.reason
    # Statistics are of the file's own type: a condition looks at the values.
    assert len(cast.filter("n >= 3")) == (added["n"] == 3)
    assert cast.write_parquet(tmp_path / "_out.parquet").notes == (note,)


def test_a_value_that_does_not_fit_the_cast_is_named(tmp_path: Path) -> None:
    pq.write_table(GOOD, tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [1.0, float("nan"), 2.5], "s": ["", "", ""]}), tmp_path / "b.parquet")
    dataset = gp.read_parquet(tmp_path, on_mismatch="cast")
    with raises(SchemaMismatch, where="b.parquet", got=2.5, match="row 3, column 'n'"):
        dataset.compute()
    pq.write_table(pa.table({"n": [1.0, float("nan"), 2.0], "s": ["", "", ""]}), tmp_path / "b.parquet")
    assert values(gp.read_parquet(tmp_path, on_mismatch="cast"), "n") == [1, 2, 1, None, 2]
    for name, (first, second) in {"lists": ([1], [[1]]), "numbers": ([[1]], [1])}.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"n": first}), tmp_path / name / "a.parquet")
        pq.write_table(pa.table({"n": second}), tmp_path / name / "b.parquet")
        with pytest.raises(SchemaMismatch, match=r"b\.parquet: column 'n' is (list<)?int64"):
            gp.read_parquet(tmp_path / name, on_mismatch="cast")


def test_casts_that_pyarrow_does_not_know(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([0], pa.timestamp("us"))}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [True]}), tmp_path / "b.parquet")
    with raises(SchemaMismatch, where="b.parquet", remedy="on_mismatch='skip'", match="bool cannot become timestamp"):
        gp.read_parquet(tmp_path, on_mismatch="cast").compute()


def test_the_rows_of_half_a_cast_file(tmp_path: Path) -> None:
    for name, dtype in (("a", pa.int64()), ("b", pa.float64())):
        pq.write_table(pa.table({"n": pa.array(range(10), dtype)}), tmp_path / f"{name}.parquet")
    dataset = gp.read_parquet(tmp_path, on_mismatch="cast", partition_bytes=1)
    _, right = dataset.partitions[1].split_at(7)
    assert values(dataset.of_partitions([right]), "n") == [7, 8, 9]
    assert dataset.schema["n"].nullable  # floats do not tell how many are missing
    assert len(dataset.split(by="n", at=5)[0]) == 10


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_text_files_follow_the_same_rules(tmp_path: Path, packed: str) -> None:
    def write(name: str, text: str) -> None:
        codec = {"": None, ".gz": "gzip", ".zst": "zstd"}[packed]
        with pa.output_stream(tmp_path / f"{name}.csv{packed}", compression=codec) as file:
            file.write(text.encode())

    write("a", "n,s\n1,a\n")
    write("b", "n,s\n2,b,c\n")
    write("c", "s,x\nc,1\n")
    write("d", "n,s\nx,d\n")
    write("e", "s,n\ne,5\n")
    with pytest.raises(BadFile, match=rf"b\.csv{packed}: row 2 has 3 values"):
        gp.read_csv(tmp_path)
    with pytest.raises(SchemaMismatch, match=rf"c\.csv{packed}: column 'n' is not there"):
        gp.read_csv(tmp_path, on_bad="skip")
    dataset = gp.read_csv(tmp_path, on_bad="quarantine", on_mismatch="skip")
    assert plain(dataset.compute()) == [{"n": 1, "s": "a"}, {"n": 5, "s": "e"}]
    assert [note.action for note in dataset.rejected] == ["quarantined", "skipped", "skipped"]
    assert "row 2, column 'n': invalid value, got 'x'" in dataset.rejected[2].reason
    (tmp_path / f"d.csv{packed}").unlink()
    cast = gp.read_csv(tmp_path, on_bad="skip", on_mismatch="cast")
    assert plain(cast.compute()) == [{"n": 1, "s": "a"}, {"n": None, "s": "c"}, {"n": 5, "s": "e"}]
    assert {note.action for note in cast.source.notes} == {"skipped", "cast", "left out"}
    (told,) = [note.reason for note in cast.source.notes if note.action == "cast"]
    assert told.split(" and")[0] == "column 'n' is not there"
    assert [note.column for note in cast.conversions] == ["x"]


def test_a_cut_off_zst_file(tmp_path: Path) -> None:
    with pa.output_stream(tmp_path / "a.csv.zst", compression="zstd") as file:
        file.write(b"n\n" + b"".join(b"%d\n" % n for n in range(100_000)))
    content = (tmp_path / "a.csv.zst").read_bytes()
    (tmp_path / "a.csv.zst").write_bytes(content[:-100])
    with pytest.raises(BadFile, match=r"a\.csv\.zst: cannot be unpacked"):
        gp.read_csv(tmp_path)


def test_a_fit_tells_of_the_files_it_did_not_see(tmp_path: Path) -> None:
    for name, content in (("a", whole()), ("b", b""), ("c", whole(pa.table({"n": ["x"], "s": ["b"]})))):
        (tmp_path / f"{name}.parquet").write_bytes(content)
    dataset = gp.read_parquet(tmp_path, on_bad="skip", on_mismatch="quarantine")
    pipeline = gp.Pipeline([], gp.Features((["n"], gp.preprocessing.StandardScaler()))).fit(dataset)
    assert pipeline.fit_report.rejected == dataset.rejected
    assert [note.action for note in dataset.rejected] == ["skipped", "quarantined"]
    assert str(pipeline.fit_report).startswith("fitted on 2 rows, 2 files rejected; 1 read")


def test_a_column_without_a_value_is_of_any_type(tmp_path: Path) -> None:
    nothing = pa.table({"n": pa.nulls(2), "s": pa.nulls(2), "t": pa.nulls(2), "never": pa.nulls(2)})
    held = pa.table(
        {"n": pa.array([1, None], pa.int8()), "s": ["a", "b"], "t": pa.array([0, 1], pa.date32()), "never": pa.nulls(2)}
    )
    for order in ([nothing, held, nothing], [held, nothing, held]):
        for number, table in enumerate(order):
            pq.write_table(table, tmp_path / f"{number}.parquet")
        dataset = gp.read_parquet(tmp_path)
        dtypes = {"n": "int8", "s": "string", "t": "timestamp", "never": "float64"}
        assert {item.name: item.dtype for item in dataset.schema} == dtypes
        for limit in (1, None):
            again = gp.read_parquet(tmp_path, partition_bytes=limit)
            assert values(again, "n") == [n for table in order for n in table["n"].to_pylist()]
            assert values(again.filter("s == 'b'"), "s") == ["b"] * order.count(held)
    pq.write_table(pa.table({name: ["x"] for name in dtypes}), tmp_path / "3.parquet")
    with pytest.raises(SchemaMismatch, match=r"3\.parquet: column 'n' is string.\nExpected int8, as in .*/0\.parquet"):
        gp.read_parquet(tmp_path)
    pq.write_table(nothing, tmp_path / "0.parquet")
    with pytest.raises(SchemaMismatch, match=r"3\.parquet: column 'n' is string.\nExpected int8, as in .*/2\.parquet"):
        gp.read_parquet(tmp_path)


def test_a_part_cut_short_is_named_with_what_helps(tmp_path: Path) -> None:
    rows = gp.from_frame(pa.table({"n": list(range(9))}), num_partitions=3)
    rows.write_parquet(tmp_path / "out")
    part = tmp_path / "out" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-30])
    with pytest.raises(BadFile) as caught:
        gp.read_parquet(tmp_path / "out")
    assert caught.value.where == str(part)
    assert "overwrite=True" in str(caught.value.remedy)
    assert "on_bad='skip'" in str(caught.value.remedy)
    dataset = gp.read_parquet(tmp_path / "out", on_bad="skip")
    assert values(dataset, "n") == [0, 1, 2, 6, 7, 8]
    rows.write_parquet(tmp_path / "out", overwrite=True)
    assert values(gp.read_parquet(tmp_path / "out"), "n") == list(range(9))


def _write_text(path: Path, rows: list[dict[str, object]]) -> None:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines if path.suffix == ".csv" else map(json.dumps, rows)) + "\n")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "arrow", "orc"])
def test_a_column_added_upstream_stops_no_nightly_job(
    suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    read = {"csv": gp.read_csv, "jsonl": gp.read_json, "arrow": gp.read_ipc, "orc": gp.read_orc}.get(
        suffix, gp.read_parquet
    )

    def deliver(night: int, **more: object) -> None:
        path, rows = folder / f"{night}.{suffix}", [{"n": night, "s": "a", **more}]
        table = pa.Table.from_pylist(rows)
        if suffix == "orc":
            pa_orc.write_table(table, path)
        elif suffix == "arrow":
            with pa.ipc.new_file(path, table.schema) as file:
                file.write_table(table)
        elif suffix == "parquet":
            pq.write_table(table, path)
        else:
            _write_text(path, rows)

    deliver(1)
    double = gp.Pipeline([T.Derive(twice="n * 2")])
    double.fit(read(folder)).transform(read(folder)).write_parquet(out)
    deliver(2, new=1)
    deliver(3, new=2, more="x")
    with caplog.at_level(logging.WARNING, "gpupipe"):
        dataset = read(folder)
    assert [(note.file, note.column, note.action) for note in dataset.conversions] == [
        (str(folder / f"2.{suffix}"), "new", "left out"),
        (str(folder / f"3.{suffix}"), "more", "left out"),
    ]
    assert "column 'new': left out" in caplog.text and dataset.rejected == ()
    manifest = double.transform(dataset).write_parquet(out)
    assert [note.column for note in manifest.notes] == ["new", "more"]
    assert values(gp.read_parquet(out), "twice") == [2, 4, 6]
    with raises(SchemaMismatch, where="column 'new'", match="left out, because the first"):
        dataset.select("new")
    assert len(read(folder, on_mismatch="skip")) == 3
