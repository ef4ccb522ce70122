"""Bad file policy: raise for files that cannot be used, or skip or convert and record them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from gpupipe.backend.arrow_types import Reading
from gpupipe.errors import BadFile, SchemaMismatch
from gpupipe.io.planning.partitions import FileNote, conversions
from gpupipe.io.stores.find_files import Input
from gpupipe.support.validation import check_choice

__all__ = ["BadFilePolicy", "open_all"]

_AT_ONCE = 16
_AHEAD = 256
"""Files whose fetched bytes may wait to be worked on."""
_log = logging.getLogger("gpupipe")


class BadFilePolicy:
    """Bad file policy: the caller's choice for files that differ or cannot be read, and its outcome.

    Args:
        on_mismatch: `"raise"`, `"cast"`, `"skip"` or `"quarantine"`, for files with other columns or types than the
            first.
        on_bad: `"raise"`, `"skip"` or `"quarantine"`, for files that cannot be read.

    Raises:
        BadConfig: no such choice.
    """

    def __init__(self, on_mismatch: str = "raise", on_bad: str = "raise") -> None:
        check_choice("read", ("raise", "cast", "skip", "quarantine"), on_mismatch=on_mismatch)
        check_choice("read", ("raise", "skip", "quarantine"), on_bad=on_bad)
        self.casts = on_mismatch == "cast"
        self.notes: list[FileNote] = []
        self.left_out: dict[str, str] = {}
        self._conversions: dict[tuple[str, str], FileNote] = {}
        self._on_mismatch, self._on_bad = on_mismatch, on_bad

    def refuse(self, name: str, error: BadFile | SchemaMismatch) -> None:
        """Skip a file and record why, or raise the error if that is the choice."""
        choice = self._on_bad if isinstance(error, BadFile) else self._on_mismatch
        if choice in ("raise", "cast"):
            raise error
        reason = str(error).partition("\n")[0].removeprefix(f"{error.where}: ").removesuffix(".")
        self.notes.append(FileNote(name, "quarantined" if choice == "quarantine" else "skipped", reason))

    def adapt(self, name: str, difference: str) -> None:
        """Write down that a file is brought to the first one's columns."""
        self.notes.append(FileNote(name, "cast", difference))

    def convert(self, name: str, columns: Mapping[str, tuple[object, Reading]]) -> None:
        """Write down which columns of a file do not come out as they went in, given their types; each once."""
        new = {column: pair for column, pair in columns.items() if (column, str(pair[0])) not in self._conversions}
        for note in conversions(name, new):
            column = note.column or ""
            kind, reading = columns[column]
            self._conversions[column, str(kind)] = note
            if reading.dtype is None:
                self.left_out[column] = str(kind)

    def close(self, num_files: int) -> tuple[FileNote, ...]:
        """Return the notes, logged; no more may follow.

        Raises:
            BadFile: no file is left.
        """
        if self.notes and not num_files:
            raise BadFile(
                self.notes[0].file,
                f"none of {len(self.notes)} files can be used; this one: {self.notes[0].reason}",
                expected="one at least",
                remedy="on_bad='raise' and on_mismatch='raise', which show what is wrong",
            )
        if self.notes:
            shown = "; ".join(map(str, self.notes[:3])) + ("; ..." if len(self.notes) > 3 else "")
            many = len({note.file for note in self.notes})
            told = "1 file is not read as it is" if many == 1 else f"{many:,} files are not read as they are"
            _log.warning("%s: %s", told, shown)
        return *self.notes, *self._conversions.values()


def open_all(
    inputs: Sequence[Input],
    opener: Callable[[Input], Any],
    policy: BadFilePolicy,
    *,
    finish: Callable[[Any], Any] = lambda opened: opened,
    at_once: int = _AT_ONCE,
) -> dict[int, Any]:
    """Open every file, by its position; `policy` says what is done about those that cannot be used.

    Args:
        inputs: the files.
        opener: raises BadFile or SchemaMismatch for a file that cannot be used; called in threads.
        policy: gets every such error.
        finish: makes the result of what `opener` gave, in the calling thread: what a library allocates in many short
            threads stays with the process long after it is freed.
        at_once: how many threads open files; with one, they are opened in order.
    """

    def attempt(one: Input) -> Any:
        try:
            return opener(one.stamped())
        except (BadFile, SchemaMismatch) as error:
            return error

    opened = {}
    with _threads(min(at_once, len(inputs))) as pool:
        for first in range(0, len(inputs), _AHEAD):
            some = inputs[first : first + _AHEAD]
            for number, found in enumerate(map(attempt, some) if pool is None else pool.map(attempt, some), first):
                try:
                    if isinstance(found, BadFile | SchemaMismatch):
                        raise found
                    opened[number] = finish(found)
                except (BadFile, SchemaMismatch) as error:
                    policy.refuse(inputs[number].path, error)
    return opened


@contextmanager
def _threads(number: int) -> Iterator[ThreadPoolExecutor | None]:
    """Give that many threads, none for one, which begin nothing more when the block fails."""
    if number < 2:
        yield None
        return
    pool = ThreadPoolExecutor(number, thread_name_prefix="gpupipe-open")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
