"""Time zone tables: the moments at which a zone's UTC offset changes, and the offsets."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

_DAY = 86_400
_FIRST, _RULES_ONLY, _END = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1800, 2100, 2500))
REPEATS_FROM = _END * 1_000_000
"""Microseconds since 1970 from which on transitions repeat those of the 400 years before."""
REPEATS_EVERY = 146_097 * _DAY * 1_000_000
"""Microseconds in 400 years, after which the calendar and the weekdays are the same."""


def is_zone(name: object) -> bool:
    """Return whether the system's time zone database has a zone of that name."""
    try:
        return isinstance(name, str) and bool(ZoneInfo(name).key)
    except (KeyError, ValueError, OSError):  # not there; a path; a folder
        return False


def closest_zones(name: object) -> list[str]:
    """Find the names of time zones that a misspelt one is nearest to, by the whole name or by the city alone."""
    spelling = str(name).strip().replace(" ", "_").lower()
    zones = {zone.lower(): zone for zone in sorted(available_timezones())}
    cities = {lowered.rpartition("/")[2]: zone for lowered, zone in zones.items() if "/" in lowered}
    whole = get_close_matches(spelling, zones, n=3, cutoff=0.6)
    city = get_close_matches(spelling.rpartition("/")[2], cities, n=3, cutoff=0.75)
    return list(dict.fromkeys([*(cities[match] for match in city), *(zones[match] for match in whole)]))[:3]


@cache
def transitions(name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """List the moments (microseconds of UTC since 1970, ascending) at which a zone's offset from UTC changes, to 2500.

    Also returns the offsets in microseconds: the first before all moments, then one from each moment on.
    """
    zone = ZoneInfo(name)
    moments, offsets, before = [], [_offset(zone, _FIRST)], _FIRST

    def has_changed(second: int) -> bool:
        return _offset(zone, second) != offsets[-1]

    # At most one change is between two samples: changes are at least almost 4 days apart, and what is known of the
    # years from 2100 on are the rules for summer time alone.
    for sample in (*range(_FIRST, _RULES_ONLY, 2 * _DAY), *range(_RULES_ONLY, _END, 20 * _DAY)):
        if has_changed(sample):
            moments.append((before + bisect_left(range(before, sample), True, key=has_changed)) * 1_000_000)
            offsets.append(_offset(zone, sample))
        before = sample
    return tuple(moments), tuple(offsets)


def _offset(zone: ZoneInfo, second: int) -> int:
    ahead = datetime.fromtimestamp(second, zone).utcoffset()
    assert ahead is not None
    return ahead // timedelta(microseconds=1)
