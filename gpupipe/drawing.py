"""Drawing: an SVG that shows itself in a notebook and can be saved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpupipe.files import replacing
from gpupipe.support.validation import check_bool, is_path, refuse_argument


@dataclass(frozen=True)
class Drawing:
    """Drawing as an SVG, which a browser opens and a document takes."""

    svg: str

    def _repr_html_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Drawing of {len(self.svg):,} bytes: save('curves.svg') writes it"

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the drawing as an SVG file, which appears whole or not at all.

        Raises `BadFile`: something is there and `overwrite` is False, or it cannot be written; `BadConfig`: no path.
        Memory: none.
        """
        if not is_path(path):
            raise refuse_argument("Drawing.save", "path", path, "a path", "'curves.svg'")
        check_bool("Drawing.save", overwrite=overwrite)
        with replacing(Path(path), overwrite=overwrite) as draft:
            draft.write_text(self.svg, encoding="utf-8")
