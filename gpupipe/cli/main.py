"""`gpupipe demo | doctor | inspect PATH | score MODEL INPUT OUTPUT | --version`."""

from __future__ import annotations

import argparse
import logging
import os
import re
import select
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from gpupipe.errors import BadConfig, GpupipeError
from gpupipe.version import __version__

_PYTHON_ARGUMENTS = ("columns", "comment", "dtypes", "names", "skip_rows", "thousands", "timestamp_formats")
"""Arguments of readers that the command has no options for."""
_READ_TIMES = (
    r"gp\.read_csv\(\.\.\., timestamp_formats=(?P<columns>\{'[^']*': '[^']*'\}(?: or \{'[^']*': '[^']*'\})*)"
    r"(, null_values=\{(?P<marked>'[^']*'): \[(?P<marks>[^]]*)\]\})?\), or pd\.to_datetime\([^()]*\)|"
    r"timestamp_formats=\[(?P<first>'[^']*')\]"
)
"""How errors offer a format of times, and texts that are missing values, to Python."""
_STEPS = (
    r"frame = (?:gp\.read_csv\(\.\.\., (.*?)\)|data)\.compute\(\); (.*?)  # and frame .*|"
    r"gp\.read_csv\(\.\.\., (.*?)\) of digits like 20240131 .*"
)
"""How errors offer what the command has no options for: a time zone, and numbers that are times."""
_UNREAD = 141  # the exit code: 128 and the number of SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0, 1 for a problem found, 2 for a wrong call or bad input.

    Where what it prints is read no more, as by `| head`, the command ends without a word, with 141 as Unix commands do.
    """
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        streams = [stream for stream in (sys.stdout, sys.stderr) if _is_unread(stream)]
        if not streams:
            raise  # another pipe
        for stream in streams:  # what they still hold is written as Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return _UNREAD


def _is_unread(stream: TextIO) -> bool:
    """Return whether a stream is a pipe whose other end is closed."""
    poll = select.poll()
    poll.register(stream, 0)
    return bool(poll.poll(0))


def _run(arguments: Sequence[str] | None) -> int:
    parsed = _parser().parse_args(arguments)
    in_a_job = parsed.run is _score and not sys.stderr.isatty()  # whose log has the lines of progress
    logging.basicConfig(format="%(message)s", level=logging.INFO if parsed.verbose or in_a_job else logging.WARNING)
    try:
        return int(parsed.run(parsed))
    except GpupipeError as error:
        notes = "".join(f"\n({note})" for note in getattr(error, "__notes__", ()))
        text = f"{error}{notes}"
        is_of_python = parsed.run is _score and parsed.history is None and re.search(_STEPS, text)
        print(_write_steps(text, parsed) if is_of_python else _name_options(text), file=sys.stderr)
        return 2


def _write_steps(text: str, parsed: argparse.Namespace) -> str:
    """Replace a remedy that the command has no options for by the lines of Python that do what it was to do."""
    from gpupipe.cli.table import choose_reader

    def write(match: re.Match[str]) -> str:
        first, step, second = (match[number] or "" for number in (1, 2, 3))
        options = _get_dialect(parsed) | {
            name: answer for name in ("on_bad", "on_mismatch") if (answer := getattr(parsed, name)) != "raise"
        }
        keywords = [f"{name}={value!r}" for name, value in options.items() if f"{name}=" not in first + second]
        arguments = ", ".join([repr(parsed.input), *filter(None, (first, second)), *keywords])
        table = f"gp.{choose_reader(parsed.input)}({arguments})"
        read = f"frame = {table}.compute(); {step}; " if step else ""
        scorer = f"gp.load({parsed.model!r}{f', allow={parsed.allow!r}' if parsed.allow else ''})"
        predict = f"{'predict_proba' if parsed.proba else 'predict'}({'gp.from_frame(frame)' if read else table})"
        output = f"{parsed.output!r}{', overwrite=True' if parsed.overwrite else ''}"
        return f"in Python, import gpupipe as gp; {read}{scorer}.{predict}.write_parquet({output})"

    return re.sub(_STEPS, write, text)


def _name_options(text: str) -> str:
    """Replace keywords by the command's options, but for those of a call that is written out; name those of Python."""
    text = re.sub(r"(?<!, )overwrite=True", "--overwrite", text)
    text = re.sub(r"\bhistory=(?!\w)", "--history", text)
    text = re.sub(r"(?<!\(\.\.\., )on_(bad|mismatch)='(\w+)'", r"--on-\1 \2", text)
    text = re.sub(r"(?<!\(\.\.\., )\b(sep|decimal|encoding)=('[^']+')", r"--\1 \2", text)
    text = re.sub(r"\bencoding=(?=,)", "--encoding", text)
    text = re.sub(r"gp\.load\(path, allow=\[([^]]*)\]\)", _name_allowed, text)
    text = re.sub(_READ_TIMES, _name_times, text)
    return re.sub(rf"(?<=[ \n])(?<!\(\.\.\., )({'|'.join(_PYTHON_ARGUMENTS)})=", r"in Python \1=", text, count=1)


def _name_allowed(match: re.Match[str]) -> str:
    return " ".join(f"--allow {name}" for name in re.findall("'([^']*)'", match[1]))


def _name_times(match: re.Match[str]) -> str:
    formats = match["first"] or " or ".join(re.findall(r"(?<=: )'[^']*'", match["columns"]))
    texts = re.findall("'([^']*)'", match["marks"] or "")
    marks = "".join(f" --null-value '{match['marked'][1:-1]}={text}'" for text in texts)
    return f"--timestamp-format {formats}{marks}"


def _parser() -> argparse.ArgumentParser:
    about = "Tables to a trained PyTorch model, on a GPU or without."
    parser = argparse.ArgumentParser(prog="gpupipe", description=about)
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is decided and why")
    parser.add_argument("--version", action="version", version=f"gpupipe {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="a year of flights: from Parquet to a saved model that predicts delays")
    data = Path("data")  # of the working folder, else of the repository that contains this package
    data = data if data.is_dir() else Path(__file__).parents[2] / "data"
    demo.add_argument("--data", type=Path, default=data, help="folder with flights.parquet and weather.parquet")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="where the pipeline and model are saved")
    demo.add_argument("--seed", type=int, default=7)
    beside = "do not fit scikit-learn's gradient boosting beside it"
    demo.add_argument("--no-reference", action="store_true", help=beside)
    demo.set_defaults(run=_demo)
    fits = "what is installed, whether it fits together and runs on the GPU, what to do"
    commands.add_parser("doctor", help=fits).set_defaults(run=_doctor)
    inspect = commands.add_parser("inspect", help="what is in a table, column by column; or the card of a saved model")
    formats = "file, folder, pattern or URL: Parquet, ORC, Arrow IPC (Feather), CSV or JSON lines, by the names' ends"
    inspect.add_argument("path", help=f"{formats}; or the folder of a saved model")
    inspect.add_argument("--target", help="a column or an expression: how much each column says about it")
    inspect.add_argument("--html", type=Path, metavar="FILE", help="write the table's report there too, as one file")
    inspect.add_argument("--overwrite", action="store_true", help="write over what is at the place of --html")
    inspect.set_defaults(run=_inspect)
    score = commands.add_parser(
        "score", help="predict the rows of a table with a saved model, into a folder of Parquet"
    )
    score.add_argument("model", help="the folder of a saved model, or its URL")
    score.add_argument("input", help=formats)
    score.add_argument("output", help="folder or URL; the same command again goes on, and adds the rows of new files")
    earlier = "earlier rows, as INPUT, that windows (T.Lag, T.Rolling) look at, and that are not predicted"
    score.add_argument("--history", metavar="PATH", help=earlier)
    score.add_argument("--proba", action="store_true", help="probabilities in the place of decisions")
    score.add_argument("--overwrite", action="store_true", help="write everything again")
    allowed = "import path of a function or step of yours that the model uses; may be given several times"
    for reading in (inspect, score):
        answers, damaged = ["raise", "skip", "quarantine"], "what to do about a file that is damaged"
        reading.add_argument("--on-bad", choices=answers, default="raise", help=damaged)
        other = "what to do about a file that has other columns or types than the first, or a value of another type"
        reading.add_argument("--on-mismatch", choices=[*answers, "cast"], default="raise", help=other)
        reading.add_argument("--sep", help="of CSV, what separates values, if no comma: ';'")
        reading.add_argument("--decimal", help="of CSV, the decimal point of numbers: ','")
        reading.add_argument("--encoding", help="of CSV, if not UTF-8: 'latin-1'")
        times = "of CSV, how times are written beside ISO 8601: '%%d/%%m/%%Y'; may be given several times"
        reading.add_argument(
            "--timestamp-format", dest="timestamp_formats", action="append", metavar="FORMAT", help=times
        )
        marks = (
            "of CSV, a text that is a missing value, in place of NA, NULL and the like, or beside them in one column;"
        )
        marks += " may be given several times"
        reading.add_argument("--null-value", dest="null_values", action="append", metavar="[COLUMN=]TEXT", help=marks)
    score.add_argument("--allow", action="append", default=[], metavar="NAME", help=allowed)
    score.set_defaults(run=_score)
    return parser


def _demo(parsed: argparse.Namespace) -> int:
    from gpupipe.cli.demo import run

    run(parsed.data, parsed.out, seed=parsed.seed, reference=not parsed.no_reference)
    return 0


def _doctor(_: argparse.Namespace) -> int:
    from gpupipe import backend
    from gpupipe.backend.device.probe import probe
    from gpupipe.cli.doctor import Report, diagnose

    report = diagnose(probe())
    print(report)
    if report.exit_code or backend.resolve() != "gpu":
        return report.exit_code
    from gpupipe.cli.warm_up import warm_up

    compiling = "the first time its kernels are compiled, which may take a minute."
    print(f"\nA small pipeline runs on the GPU; {compiling}", flush=True)
    report = Report((warm_up(),))
    print(report)
    return report.exit_code


def _inspect(parsed: argparse.Namespace) -> int:
    from gpupipe import io
    from gpupipe.cli.table import open_table
    from gpupipe.saving.card import describe_artifact
    from gpupipe.saving.folders import is_artifact

    if is_artifact(parsed.path):
        for name in ("target", "html", "overwrite"):
            if getattr(parsed, name):
                where, problem = f"gpupipe inspect --{name}", "this is a saved model, which has a card"
                remedy = f"gpupipe inspect {parsed.path}"
                raise BadConfig(where, problem, got=parsed.path, expected="a table", remedy=remedy)
        print(describe_artifact(parsed.path))
        return 0
    dataset = open_table(parsed.path, (), _get_dialect(parsed), on_bad=parsed.on_bad, on_mismatch=parsed.on_mismatch)
    report = dataset.describe(parsed.target)
    if parsed.html is not None:
        report.to_html(parsed.html, overwrite=parsed.overwrite)
    print(f"{report}\n\n{io.inspect(dataset)}")
    return 0


def _get_dialect(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `read_csv` that the command was given."""
    names = ("sep", "decimal", "encoding", "timestamp_formats", "null_values")
    dialect = {name: value for name in names if (value := getattr(parsed, name)) is not None}
    marks = [text.rpartition("=") for text in dialect.get("null_values", ())]
    if of_all := [text for column, _, text in marks if not column]:
        if len(of_all) < len(marks):
            problem, expected = "marks of all columns beside those of one", "either"
            remedy = f"--null-value COLUMN={of_all[0]} for each column"
            raise BadConfig("--null-value", problem, got=of_all[0], expected=expected, remedy=remedy)
    elif marks:
        columns = dict.fromkeys(column for column, _, _ in marks)
        dialect["null_values"] = {name: [text for column, _, text in marks if column == name] for name in columns}
    return dialect


def _score(parsed: argparse.Namespace) -> int:
    from gpupipe.cli.table import choose_reader, open_table
    from gpupipe.io.jobs.destination import refuse_output_among_input
    from gpupipe.saving.artifact import load
    from gpupipe.saving.scorer import list_texts

    stem, dot, ending = parsed.output.rstrip("/").rpartition(".")
    if dot and ending.lower() in ("csv", "json", "jsonl", "ndjson", "orc", "arrow", "feather", "gz"):
        problem, expected = "scores are written as a folder of Parquet", "a folder"
        raise BadConfig("gpupipe score, output", problem, got=parsed.output, expected=expected, remedy=stem)
    if parsed.allow:  # a function of one's own lies where the command is called, as a script's modules lie beside it
        sys.path.append(str(Path.cwd()))
    scorer = load(parsed.model, allow=parsed.allow)
    if parsed.proba and scorer.schema.task == "regression":
        problem, expected = "a regression has no probabilities", "a classification's model"
        raise BadConfig("gpupipe score --proba", problem, expected=expected, remedy="the command without --proba")
    predict = scorer.predict_proba if parsed.proba else scorer.predict
    options, dialect = {"on_bad": parsed.on_bad, "on_mismatch": parsed.on_mismatch}, _get_dialect(parsed)
    texts = list_texts(scorer)
    paths = [parsed.input, *([] if parsed.history is None else [parsed.history])]  # may be of two formats
    has_csv = any(choose_reader(path) == "read_csv" for path in paths)
    rows, *histories = (open_table(path, texts, dialect, of_csv_alone=not has_csv, **options) for path in paths)
    # Of a folder of CSV files, too: with Parquet among them, the next command would read that.
    listings = [replace(listing, suffixes=("",)) for table in (rows, *histories) for listing in table.listings]
    refuse_output_among_input(listings, parsed.output, ["part.parquet"], None)
    predictions = predict(rows, history=histories[0] if histories else None)
    print(predictions.write_parquet(parsed.output, overwrite=parsed.overwrite))
    return 0
