"""Retries of calls to stores, after failures of the store or the network."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from gpupipe.errors import BadFile

__all__ = ["call_with_retries", "get_status"]

Result = TypeVar("Result")

ATTEMPTS = 4
FIRST_WAIT = 0.5
"""Seconds before the second attempt; doubled for each further one, and up to half of it more or less by chance."""

_FINAL = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_NOT_ASKED = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError", "DefaultCredentialsError")
"""What botocore and Google's packages raise before they ask a store."""
_REFUSALS = (400, 401, 403, 404, 405)
"""Answers of HTTP that would be the same again; 400 is S3's to a wrong region too."""
_log = logging.getLogger("gpupipe")


def call_with_retries(work: Callable[[], Result], path: str, doing: str) -> Result:
    """Call `work`, a few times with growing waits where a store or the network fails; return its result.

    Stores' own libraries try again too, each what it knows of; this is for the rest, and says so in the log.

    Args:
        work: must do no harm when called twice.
        path: what messages name.
        doing: `"read"` or `"written"`.

    Raises:
        BadFile: it failed each time, or there is no such file, or it may not be touched; has the last cause.
    """
    for attempt in count(1):
        try:
            return work()
        except Exception as cause:
            if _is_final(cause):
                here = "its permissions" if isinstance(cause, PermissionError) else "what stands at that path or link"
                elsewhere = "the right path, endpoint and region; storage_options= or the environment for credentials"
                raise BadFile(
                    path,
                    f"it cannot be {doing} ({_words(cause)})",
                    expected="a file that is there and may be used",
                    remedy=elsewhere if "://" in path else here,
                ) from cause
            if attempt == ATTEMPTS:
                raise BadFile(
                    path,
                    f"it cannot be {doing}: {attempt} attempts failed, the last with {_words(cause)}",
                    expected="a store that answers",
                    remedy="the same call again when it does; or another endpoint, in storage_options=",
                ) from cause
            wait = FIRST_WAIT * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311
            _log.warning(
                "%s: attempt %d of %d failed (%s), again in %.1f s", path, attempt, ATTEMPTS, _words(cause), wait
            )
        time.sleep(wait)
    raise AssertionError


def get_status(cause: BaseException) -> int | None:
    """Return the HTTP status of an error, if any: aiohttp's has it, s3fs' has botocore's as its cause."""
    response = getattr(cause.__cause__, "response", None)
    found = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    status = getattr(cause, "status", found.get("HTTPStatusCode"))
    return status if isinstance(status, int) else None


def _is_final(cause: BaseException) -> bool:
    """Return whether the same call again would fail the same."""
    return (
        isinstance(cause, _FINAL)
        or type(cause).__name__ in _NOT_ASKED
        or (get_status(cause) in _REFUSALS and not isinstance(cause, TimeoutError))
    )


def _words(cause: BaseException) -> str:
    """Format a cause in one line."""
    return " ".join(f"{type(cause).__name__}: {cause}".split())
