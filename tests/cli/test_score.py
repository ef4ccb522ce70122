"""`gpupipe score` and the card of `gpupipe inspect`: what they write, print and answer."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.cli.main import main

FRAME = pd.DataFrame({"x": np.arange(60.0), "k": ["a", "b", None] * 20, "y": np.arange(60) % 2})
RIGHT = pd.DataFrame({"k": ["a", "b"], "v": [1.0, 2.0]})


def double(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(twice=2 * frame["x"])


def save(path: Path, *more: T.Transform) -> gp.Scorer:
    steps = [T.Join(RIGHT, on="k", name="right"), T.Derive(late="x > 30"), T.Expect("x", min=0), *more]
    features = gp.Features(
        (["x", "v"], [pre.SimpleImputer("median"), pre.StandardScaler()]),
        (["k"], pre.Categorify()),
        ["late"],
        target="y",
        keep=["x"],
    )
    pipeline = gp.Pipeline(steps, features).fit(FRAME)
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1)
    gp.save(path, pipeline, model, threshold=0.25)
    return gp.Scorer(pipeline, model, threshold=0.25)


@pytest.mark.parametrize("proba", [False, True])
def test_it_writes_what_the_scorer_predicts(tmp_path: Path, proba: bool, capsys: pytest.CaptureFixture[str]) -> None:
    scorer = save(tmp_path / "run")
    FRAME.drop(columns="y").to_csv(tmp_path / "rows.csv", index=False)
    call = ["score", str(tmp_path / "run"), str(tmp_path / "rows.csv"), str(tmp_path / "out"), *["--proba"] * proba]
    assert main(call) == 0
    assert capsys.readouterr().out.startswith("60 of 60 rows in 1 part; 1 written now")
    expected = (scorer.predict_proba if proba else scorer.predict)(FRAME)
    pd.testing.assert_frame_equal(gp.read_parquet(tmp_path / "out").compute(), expected, check_dtype=False)


def test_the_same_command_goes_on_with_new_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "run")
    (tmp_path / "in").mkdir()
    FRAME.iloc[:40].to_parquet(tmp_path / "in" / "a.parquet", index=False)
    call = ["score", str(tmp_path / "run"), str(tmp_path / "in"), str(tmp_path / "out")]
    assert main(call) == 0 and "1 written now" in capsys.readouterr().out
    assert main(call) == 0 and "0 written now" in capsys.readouterr().out
    FRAME.iloc[40:].to_parquet(tmp_path / "in" / "b.parquet", index=False)
    assert main(call) == 0 and "60 of 60 rows in 2 parts, 1 of them before; 1 written now" in capsys.readouterr().out
    assert main([*call, "--proba"]) == 2
    error = capsys.readouterr().err
    assert "another pipeline, with other options" in error and "or --overwrite" in error
    assert main([*call, "--proba", "--overwrite"]) == 0 and "; 1 written now" in capsys.readouterr().out


def test_scores_are_not_written_where_the_input_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "run")
    (tmp_path / "in").mkdir()
    FRAME.to_csv(tmp_path / "in" / "a.csv", index=False)
    for name in ("scores", "scores.parquet"):
        out = str(tmp_path / "in" / name)
        for more in ([], ["--overwrite"]):
            assert main(["score", str(tmp_path / "run"), str(tmp_path / "in"), out, *more]) == 2
            error = capsys.readouterr().err
            assert "the next call would read what is written there" in error and f"Try: '{tmp_path}/{name}'" in error
        assert not Path(out).exists()
    assert main(["score", str(tmp_path / "run"), str(tmp_path / "in"), str(tmp_path / "in" / "_scores")]) == 0


def test_bad_input_is_said_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "run")
    FRAME[["x"]].to_parquet(tmp_path / "rows.parquet")
    out = str(tmp_path / "out")
    assert main(["score", str(tmp_path / "runs"), str(tmp_path / "rows.parquet"), out]) == 2
    message = capsys.readouterr().err
    assert "it holds no saved pipeline" in message and "Try: 'run' (the closest name there)" in message
    pipeline = gp.Pipeline([], gp.Features((["k"], pre.Categorify()), target="x", task="regression")).fit(FRAME)
    gp.save(tmp_path / "amounts", pipeline, gp.models.Linear.from_schema(pipeline.schema))
    assert main(["score", "--proba", str(tmp_path / "amounts"), str(tmp_path / "rows.parquet"), out]) == 2
    assert "Try: the command without --proba" in capsys.readouterr().err
    assert main(["score", str(tmp_path / "run"), str(tmp_path / "rows.parquet"), out]) == 2
    assert "column 'k' not found" in capsys.readouterr().err
    assert main(["score", str(tmp_path / "run"), str(tmp_path / "none.parquet"), out]) == 2
    FRAME.to_parquet(tmp_path / "rows.parquet")
    assert main(["score", str(tmp_path / "run"), str(tmp_path / "rows.parquet"), f"{out}.csv"]) == 2
    assert f"a folder of Parquet, got '{out}.csv'" in capsys.readouterr().err
    assert not Path(out).exists() and not Path(f"{out}.csv").exists()


def test_a_damaged_file_is_skipped_where_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "run")
    (tmp_path / "in").mkdir()
    FRAME.to_parquet(tmp_path / "in" / "a.parquet", index=False)
    (tmp_path / "in" / "b.parquet").write_bytes((tmp_path / "in" / "a.parquet").read_bytes()[:500])
    call = ["score", str(tmp_path / "run"), str(tmp_path / "in"), str(tmp_path / "out")]
    assert main(call) == 2
    error = capsys.readouterr().err
    assert "or --on-bad skip, which" in error and "write_parquet(..., overwrite=True)" in error
    assert main([*call, "--on-bad", "skip"]) == 0 and "60 of 60 rows" in capsys.readouterr().out
    assert (
        main(["inspect", str(tmp_path / "in")]) == 2
        and main(["inspect", str(tmp_path / "in"), "--on-bad", "skip"]) == 0
    )


def test_a_file_with_other_columns_is_cast_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "run")
    (tmp_path / "in").mkdir()
    FRAME.to_parquet(tmp_path / "in" / "a.parquet", index=False)
    FRAME.drop(columns="y").to_parquet(tmp_path / "in" / "b.parquet", index=False)
    call = ["score", str(tmp_path / "run"), str(tmp_path / "in"), str(tmp_path / "out")]
    assert main(call) == 2 and "--on-mismatch cast" in capsys.readouterr().err
    assert main([*call, "--on-mismatch", "cast"]) == 0 and "120 of 120 rows" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_integers_with_gaps_are_scored_where_files_are_cast(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As pandas writes them: `3.0`, and nothing where there was no value."""
    frame = pd.DataFrame({"code": np.arange(8), "y": [0, 1] * 4})
    pipeline = gp.Pipeline([], gp.Features((["code"], pre.SimpleImputer()), target="y")).fit(frame)
    gp.save(tmp_path / "m", pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,), seed=1))
    (tmp_path / "n").mkdir()
    texts = {"csv": ["code\n1\n", 'code\n3.0\n""\n'], "jsonl": ['{"code": 1}', '{"code": 3.0}\n{"code": null}']}[kind]
    for name, text in zip("ab", texts, strict=True):
        (tmp_path / "n" / f"{name}.{kind}").write_text(text)
    call = ["score", str(tmp_path / "m"), str(tmp_path / "n"), str(tmp_path / "out")]
    assert main(call) == 2 and main(["inspect", str(tmp_path / "n")]) == 2
    first, second = capsys.readouterr().err.split("Try: ")[1:]
    for remedy in (first, second):
        assert remedy.startswith("--on-mismatch cast") and "or in Python dtypes={'code': 'float64'}" in remedy
        assert "--on-mismatch quarantine, which leaves the file out" in remedy
    assert main([*call, "--on-mismatch", "quarantine"]) == 0 and "1 of 1 rows" in capsys.readouterr().out
    call[-1] = str(tmp_path / "cast")
    assert main([*call, "--on-mismatch", "cast"]) == 0 and "3 of 3 rows" in capsys.readouterr().out


def test_rows_ahead_are_scored_with_their_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    days = pd.DataFrame({"store": ["a", "b"] * 20, "day": np.arange(40) // 2, "sales": np.arange(40.0)})
    lag = T.Lag("sales", 1, by="store", order_by="day")
    pipeline = gp.Pipeline([lag], gp.Features(["sales_lag_1_by_store"], target="sales", keep=["store", "day"]))
    pipeline.fit(days.iloc[:36])
    scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,), seed=1))
    gp.save(tmp_path / "m", pipeline, scorer.model)
    past, ahead = days.iloc[:36], days.iloc[36:38].drop(columns="sales")
    past.to_csv(tmp_path / "past.csv", index=False)
    ahead.to_csv(tmp_path / "ahead.csv", index=False)
    call = ["score", str(tmp_path / "m"), str(tmp_path / "ahead.csv"), str(tmp_path / "out")]
    assert main(call) == 2
    assert "Try: --history, a table of earlier rows with 'sales'" in capsys.readouterr().err
    call += ["--history", str(tmp_path / "past.csv")]
    assert main(call) == 0 and "2 of 2 rows" in capsys.readouterr().out
    expected = scorer.predict(ahead.reset_index(drop=True), history=past)
    pd.testing.assert_frame_equal(gp.read_parquet(tmp_path / "out").compute(), expected, check_dtype=False)
    assert main(call) == 0 and "0 written now" in capsys.readouterr().out
    days.iloc[:30].to_csv(tmp_path / "past.csv", index=False)  # another history: other predictions
    assert main(call) == 2 and "--overwrite" in capsys.readouterr().err
    assert main([*call[:-1], str(tmp_path / "none.csv")]) == 2 and "none.csv: no such file" in capsys.readouterr().err


def test_a_function_of_ones_own_has_to_be_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "run", T.Map(double, reads=["x"], adds=["twice"]))
    FRAME.to_parquet(tmp_path / "rows.parquet")
    call = ["score", str(tmp_path / "run"), str(tmp_path / "rows.parquet"), str(tmp_path / "out")]
    assert main(call) == 2 and "Try: --allow tests.cli.test_score.double if you" in capsys.readouterr().err
    assert main([*call, "--allow", "tests.cli.test_score.double"]) == 0


def test_an_allowed_function_may_lie_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_steps.py").write_text("def double(frame):\n    return frame.assign(twice=2 * frame['x'])\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    save(tmp_path / "run", T.Map(import_module("my_own_steps").double, reads=["x"], adds=["twice"]))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", ".", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "my_own_steps")
    FRAME.to_parquet(tmp_path / "rows.parquet")
    call = ["score", str(tmp_path / "run"), str(tmp_path / "rows.parquet"), str(tmp_path / "out")]
    assert main([*call, "--allow", "my_own_steps.double"]) == 2
    monkeypatch.chdir(tmp_path)
    assert main([*call, "--allow", "my_own_steps.double"]) == 0


def test_a_job_without_a_terminal_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "run")
    FRAME.to_parquet(tmp_path / "rows.parquet")
    levels: list[int] = []
    monkeypatch.setattr(logging, "basicConfig", lambda **given: levels.append(given["level"]))
    main(["score", str(tmp_path / "run"), str(tmp_path / "rows.parquet"), str(tmp_path / "out")])
    main(["inspect", str(tmp_path / "rows.parquet")])
    assert levels == [logging.INFO, logging.WARNING]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_text_of_the_fit_is_read_as_text(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Digits and dates, which other tables would show to be numbers and times."""
    frame = pd.DataFrame({"zip": ["01234", "90210"] * 4, "day": ["none", "2024-01-02"] * 4, "y": ["no", "yes"] * 4})
    features = gp.Features((["zip", "day"], pre.Categorify()), target="y", keep=["zip", "day"])
    pipeline = gp.Pipeline([], features).fit(frame)
    scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,), seed=1))
    gp.save(tmp_path / "m", pipeline, scorer.model)
    rows = frame.drop(columns="y")
    (tmp_path / "in").mkdir()
    for name, part in (("a", rows[1:2]), ("b", rows[:1])):
        path = tmp_path / "in" / f"{name}.{kind}"
        if kind == "csv":
            part.to_csv(path, index=False)
        else:
            part.to_json(path, orient="records", lines=True)
    assert main(["score", str(tmp_path / "m"), str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    expected = scorer.predict(rows.iloc[[1, 0]].reset_index(drop=True))
    pd.testing.assert_frame_equal(gp.read_parquet(tmp_path / "out").compute(), expected, check_dtype=False)
    (tmp_path / "in" / f"a.{kind}").write_text({"csv": "zip\n1\n", "jsonl": '{"zip": "1"}\n'}[kind])
    (tmp_path / "in" / f"b.{kind}").unlink()
    call = ["score", str(tmp_path / "m"), str(tmp_path / "in"), str(tmp_path / "other")]
    assert main(call) == 2 and "column 'day' not found" in capsys.readouterr().err


def test_files_in_another_form_of_csv_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Semicolons, decimal commas, days first and Latin-1, as a spreadsheet in Europe writes them."""
    days = pd.date_range("2024-01-01", periods=40)
    frame = pd.DataFrame({"day": days, "x": [0.5 * number for number in range(40)], "city": ["Köln", "Ulm"] * 20})
    features = gp.Features((["x"], pre.StandardScaler()), (["city"], pre.Categorify()), target="x > 9", keep=["day"])
    features.allow_leak = ["x"]
    pipeline = gp.Pipeline([], features).fit(frame)
    scorer = gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema))
    gp.save(tmp_path / "m", pipeline, scorer.model)
    path = tmp_path / "rows.csv"
    frame.assign(day=days.strftime("%d/%m/%Y")).to_csv(path, sep=";", decimal=",", index=False, encoding="latin-1")
    call = ["score", str(tmp_path / "m"), str(path), str(tmp_path / "out")]
    assert main([*call, "--encoding", "latin-1"]) == 2 and "--sep ';'" in capsys.readouterr().err
    assert main([*call, "--encoding", "latin-1", "--sep", ";", "--timestamp-format", "%d/%m/%Y"]) == 2
    assert "; or --decimal ',' where it is read from CSV" in capsys.readouterr().err
    dialect = ["--sep", ";", "--encoding", "latin-1", "--decimal", ","]
    assert main([*call, *dialect]) == 2 and "Try: --timestamp-format '%d/%m/%Y'" in capsys.readouterr().err
    dialect += ["--timestamp-format", "%d/%m/%Y"]
    assert main([*call, *dialect]) == 0
    expected = scorer.predict(frame)
    pd.testing.assert_frame_equal(gp.read_parquet(tmp_path / "out").compute(), expected, check_dtype=False)
    capsys.readouterr()
    assert main(["inspect", str(path), *dialect]) == 0 and "Köln" in capsys.readouterr().out
    frame.to_parquet(tmp_path / "rows.parquet")
    assert main(["inspect", str(tmp_path / "rows.parquet"), "--sep", ";"]) == 2
    capsys.readouterr()
    past = str(tmp_path / "rows.parquet")  # of another format, and read: the error is that no window needs it
    for rows, history in ((call[2], past), (past, call[2])):
        assert main([*call[:2], rows, str(tmp_path / "new"), "--history", history, *dialect]) == 2
        assert "no feature is computed from other rows" in (said := capsys.readouterr().err) and "no CSV" not in said
    assert main([*call[:2], past, str(tmp_path / "new"), "--history", past, *dialect]) == 2
    assert capsys.readouterr().err.count("is no CSV") == 1


def test_a_folder_of_two_formats_is_refused_with_the_pattern_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five days of CSV and one of Parquet: only the Parquet file had been scored, without a word."""
    scorer = save(tmp_path / "run")
    (tmp_path / "in").mkdir()
    FRAME[:20].to_csv(tmp_path / "in" / "a.csv", index=False)
    FRAME[20:40].to_csv(tmp_path / "in" / "b.csv.gz", index=False)
    FRAME[40:].to_parquet(tmp_path / "in" / "c.parquet", index=False)
    (tmp_path / "in" / "notes.txt").write_text("no table")
    model, source, output = (str(tmp_path / name) for name in ("run", "in", "out"))
    for call in (["score", model, source, output], ["inspect", source], ["score", model, f"{source}/*", output]):
        assert main(call) == 2
        said = capsys.readouterr().err
        assert "files of several formats" in said and "'1 file .csv', '1 file .csv.gz'" in said
    pattern = f"{source}/**/*.csv*"
    assert main(["score", model, source, output]) == 2 and f"'{pattern}'" in capsys.readouterr().err
    assert main(["score", model, pattern, output]) == 0
    expected = scorer.predict(FRAME[:40])
    pd.testing.assert_frame_equal(gp.read_parquet(output).compute(), expected, check_dtype=False)
    (tmp_path / "in" / "a.csv").rename(tmp_path / "in" / "a.csv.bz2")  # the name alone is looked at
    assert main(["inspect", source]) == 2 and f"'{source}/**/*.csv.*' first" in capsys.readouterr().err
    (tmp_path / "lines").mkdir()
    for name in ("a.jsonl", "b.ndjson", "c.parquet"):
        (tmp_path / "lines" / name).touch()
    assert main(["inspect", str(tmp_path / "lines")]) == 2
    assert "Try: a folder for each format" in capsys.readouterr().err
    assert main(["inspect", f"{source}/c.parquet", "--null-value", "?"]) == 2
    assert "Try: the command without --null-value" in capsys.readouterr().err
    FRAME[:20].to_csv(tmp_path / "in" / "a.csv", index=False)
    call = ["score", model, f"{source}/a.csv", f"{output}_2", "--history", source]
    assert main(call) == 2 and "files of several formats" in capsys.readouterr().err


def test_marks_of_missing_values_are_told_and_read_as_in_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    frame = pd.DataFrame({"x": np.arange(60.0), "k": ["a", "b", "?"] * 20, "day": ["04-Sep-2000", "-"] * 30})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.assign(y=np.arange(60) % 2).to_csv(tmp_path / "train.csv", index=False)
    form: dict[str, object] = {"null_values": ["?", "-"], "timestamp_formats": {"day": "%d-%b-%Y"}}
    features = gp.Features(["x"], (["k"], pre.Categorify()), target="y", keep=["day"])
    pipeline = gp.Pipeline([], features).fit(gp.read_csv(tmp_path / "train.csv", **form))  # type: ignore[arg-type]
    scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1))
    gp.save(tmp_path / "run", pipeline, scorer.model)
    call = ["score", str(tmp_path / "run"), str(tmp_path / "rows.csv"), str(tmp_path / "out"), "--proba"]
    assert main(call) == 2
    offered = "--timestamp-format '%d-%b-%Y' --null-value 'day=-'"
    assert f"Try: {offered}" in capsys.readouterr().err
    ambiguous = frame.assign(day=["04.05.2000", "-"] * 30)
    ambiguous.to_csv(tmp_path / "ambiguous.csv", index=False)
    assert main([*call[:2], str(tmp_path / "ambiguous.csv"), *call[3:]]) == 2
    assert "Try: --timestamp-format '%d.%m.%Y' or '%m.%d.%Y' --null-value" in capsys.readouterr().err
    assert main([*call, *offered.replace("'", "").split()]) == 0
    assert "Categorify: column 'k' has '?' in 20 of 60 rows" in caplog.text and "--null-value 'k=?'" in caplog.text
    caplog.clear()
    words = frame.replace({"k": {"?": "unbekannt"}})
    words.to_csv(tmp_path / "words.csv", index=False)
    assert (
        main([*call[:2], str(tmp_path / "words.csv"), str(tmp_path / "other"), *offered.replace("'", "").split()]) == 0
    )
    assert "Categorify: column 'k' has 'unbekannt' in 20 of 60 rows" in caplog.text
    caplog.clear()
    assert main([*call, "--overwrite", *offered.replace("'", "").split(), "--null-value", "k=?"]) == 0
    assert main([*call, "--overwrite", *offered.replace("'", "").split(), "--null-value", "?"]) == 2
    assert "Try: --null-value COLUMN=? for each column" in capsys.readouterr().err
    expected = scorer.predict_proba(gp.read_csv(tmp_path / "rows.csv", **form))  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(gp.read_parquet(tmp_path / "out").compute(), expected.compute(), check_dtype=False)
    assert "none of the fit's categories" not in caplog.text


@pytest.mark.parametrize("zone", ["UTC", "Europe/Oslo", None])
@pytest.mark.parametrize(
    ("form", "dialect"),
    [("%d/%m/%Y", []), ("%d/%m/%Y", ["--timestamp-format", "%d/%m/%Y"]), ("%Y%m%d", []), ("%Y%m%d", ["--sep", ";"])],
)
def test_times_that_the_command_cannot_read_are_offered_lines_of_python(
    form: str, dialect: list[str], zone: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the fit with a time zone, and of the rows without one; or digits, 20240131."""
    days = pd.Series(pd.date_range("2024-01-31", periods=60, tz=zone))
    frame = FRAME.assign(day=days)
    pipeline = gp.Pipeline([], gp.Features(["x"], target="y", keep=["day"])).fit(frame)
    scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1))
    gp.save(tmp_path / "run", pipeline, scorer.model)
    sep = ";" if "--sep" in dialect else ","
    frame.assign(day=days.dt.strftime(form)).to_csv(tmp_path / "rows.csv", index=False, sep=sep)
    call = ["score", *(str(tmp_path / name) for name in ("run", "rows.csv", "out")), "--proba", *dialect]
    result = main(call)
    if zone is None and form == "%d/%m/%Y":
        said = capsys.readouterr().err
        assert (result, "Try: --timestamp-format '%d/%m/%Y'" in said) == ((0, False) if dialect else (2, True))
        return
    assert result == 2
    _, script = capsys.readouterr().err.rstrip().split("Try: in Python, ")
    exec(script)
    expected = scorer.predict_proba(frame)
    written = gp.read_parquet(tmp_path / "out").compute()
    assert written["day"].tolist() == expected["day"].tolist()
    pd.testing.assert_frame_equal(written.drop(columns="day"), expected.drop(columns="day"), check_dtype=False)
