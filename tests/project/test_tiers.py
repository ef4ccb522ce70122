"""What `make test` runs, and what it leaves to `make test-all`."""

from __future__ import annotations

from hypothesis import settings

from tests.conftest import ROOT, SLOW
from tests.examples import examples


def test_every_slow_area_is_there() -> None:
    assert [path for path in SLOW if not (ROOT / path).exists()] == []


def test_the_quick_tier_tries_a_few_examples_and_always_the_same() -> None:
    few = settings.get_profile("few")
    assert few.derandomize and few.max_examples == 25
    assert examples(40).max_examples == 40 * settings.default.max_examples // 100
    assert examples(4).max_examples == 4
