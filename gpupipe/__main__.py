"""`python -m gpupipe` is the command `gpupipe`, of this interpreter."""

from __future__ import annotations

from gpupipe.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    raise SystemExit(main())
