"""How many examples a property test tries: of the number it asks for, the share of the profile in force."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def examples(most: int, **options: Any) -> settings:
    """Settings for at most so many examples; a profile tries its share of them (conftest.py), and three at least."""
    share = most * settings.default.max_examples // 100
    return settings(deadline=None, max_examples=max(share, min(most, 3)), **options)
