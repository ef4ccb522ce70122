"""`gpupipe demo | doctor | inspect PATH | --version`."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gpupipe.errors import GpupipeError
from gpupipe.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code: 0, 1 for a problem found, 2 for a wrong call or bad input."""
    parsed = _parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.INFO if parsed.verbose else logging.WARNING)
    try:
        return int(parsed.run(parsed))
    except GpupipeError as error:
        notes = "".join(f"\n({note})" for note in getattr(error, "__notes__", ()))
        print(f"{error}{notes}", file=sys.stderr)
        return 2


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
    demo.add_argument("--out", type=Path, default=Path("runs/flights"), help="where the pipeline and model are saved")
    demo.add_argument("--seed", type=int, default=7)
    beside = "do not fit scikit-learn's gradient boosting beside it"
    demo.add_argument("--no-reference", action="store_true", help=beside)
    demo.set_defaults(run=_demo)
    fits = "what is installed, whether it fits together and runs on the GPU, what to do"
    commands.add_parser("doctor", help=fits).set_defaults(run=_doctor)
    inspect = commands.add_parser("inspect", help="a file's columns, their values, its partitions and layout")
    formats = "file, folder or pattern: Parquet, ORC, Arrow IPC (Feather), CSV or JSON lines, by the names' ends"
    inspect.add_argument("path", help=formats)
    inspect.set_defaults(run=_inspect)
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

    path, folder = parsed.path, Path(parsed.path)
    names = "\n".join(Path(name).name for name in ([path, *folder.rglob("[!._]*")] if folder.is_dir() else [path]))
    found = (reader for reader, kinds in _READERS.items() if re.search(rf"\.({kinds})(\W|$)", names))
    dataset = getattr(io, next(found, "read_parquet"))(path)
    print(f"{dataset.describe()}\n\n{io.inspect(dataset)}")
    return 0


_READERS = {
    "read_parquet": "parquet",
    "read_orc": "orc",
    "read_ipc": "arrows?|feather|ipc",
    "read_csv": "csv",
    "read_json": "jsonl|ndjson|json",
}
