"""HTML pages of reports: one file each that brings its style, and fetches nothing."""

from __future__ import annotations

import html

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #e3e6ea; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #15181c; color: #e3e6ea; } th, td { border-color: #343a41; } }
"""


def format_page(title: str, body: str) -> str:
    """Format a whole page around an HTML fragment; the title is text.

    Example:
        >>> format_page("flights", "<p>336,776 rows</p>").splitlines()[-1]
        '<body><p>336,776 rows</p></body></html>'
    """
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
