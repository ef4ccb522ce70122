"""File errors: why a file cannot be opened, judged by its size and its first and last bytes."""

from __future__ import annotations

from gpupipe.errors import BadFile
from gpupipe.io.stores.find_files import Input, peek


def one_line(cause: Exception) -> str:
    """Format a library's exception in one line, for use in a sentence."""
    return " ".join(str(cause).split())


def unreadable(one: Input, cause: Exception, kind: str, magic: bytes) -> BadFile:
    """Build the error for a file that is no `kind`, such as `"a Parquet file"`: gone, empty, another, or damaged."""
    path = one.path
    try:
        size, head, tail = peek(one)
    except OSError:
        problem, expected = f"cannot be opened ({one_line(cause)})", "a file this process may read"
        return BadFile(path, problem, expected=expected, remedy="its permissions")
    if size == 0:
        return BadFile(path, "the file is empty (0 bytes)", expected=kind, remedy="write it again")
    if not head.startswith(magic):
        is_text = head.isascii() and b"\0" not in head
        remedy = "gp.read_csv(...) or gp.read_json(...)" if is_text else "the right path, or the reader for such files"
        problem = f"not {kind}, its first bytes differ"
        return BadFile(path, problem, got=head, expected=repr(magic), remedy=remedy)
    problem = f"damaged or cut off: {size} bytes, the footer cannot be read ({one_line(cause)})"
    remedy = "the file copied or written again (write_parquet(..., overwrite=True) where that wrote it); or "
    remedy += "on_bad='skip', which reads the others"
    return BadFile(path, problem, got=tail[-4:], expected=f"{kind} with its footer", remedy=remedy)


def make_lost_file_error(path: str, cause: Exception) -> BadFile:
    """Build the error for a temporary file of ours that was altered or removed."""
    problem = f"a temporary file cannot be read ({one_line(cause)})"
    expected = "files that stay as long as the dataset, on all workers"
    remedy = "gp.configure(scratch=...) or TMPDIR= with a folder that is not tidied up and that all workers share"
    return BadFile(path, problem, expected=expected, remedy=remedy)
