"""Command `gpupipe` of this interpreter, as `python -m gpupipe`."""

from __future__ import annotations

from gpupipe.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
