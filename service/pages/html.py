"""The frame of the pages that are written here, their style, and the headers of every page.

A page loads nothing from elsewhere, so it works offline. What its Content-Security-Policy does not
name, a browser refuses: no inline script, no evaluated text, no other host.
"""

import base64
import hashlib
from collections.abc import Iterable
from html import escape

STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --soft: #586273; --line: #dde2ea;
        --page: #fff; --card: #f6f8fa; --accent: #0b6b63; --on-accent: #fff; --bad: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --text: #e3e7ed; --soft: #9aa5b5; --line: #2e3642; --page: #12161c;
          --card: #1a2029; --accent: #5fd0c0; --on-accent: #06211e; --bad: #ff8a80 }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: var(--text); background: var(--page) }
h1 { line-height: 1.2; margin-bottom: .25rem }
h2 { margin: 2.5rem 0 .25rem; border-top: 1px solid var(--line); padding-top: 1rem;
     font-size: 1.2rem; overflow-wrap: anywhere }
h3 { margin: 1rem 0 .25rem; font-size: 1rem }
a { color: var(--accent) }
code, pre, textarea { font-family: ui-monospace, monospace; font-size: .9em }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0;
         border-bottom: 1px solid var(--line); overflow-wrap: anywhere }
nav { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 }
nav a { padding: .4rem .9rem; border: 1px solid var(--line); border-radius: .5rem;
        text-decoration: none }
nav a:first-child, button { background: var(--accent); color: var(--on-accent);
        border: 1px solid var(--accent) }
th { overflow-wrap: normal }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1.5rem }
.facts h2 { border: 0; margin: 0; padding: 0 }
.facts th { font-weight: normal; color: var(--soft); width: 45% }
details { margin: .75rem 0 } summary { cursor: pointer; color: var(--accent) }
textarea { display: block; box-sizing: border-box; width: 100%; margin: .5rem 0; padding: .6rem;
           color: inherit; background: var(--card); border: 1px solid var(--line);
           border-radius: .4rem }
button { font: inherit; padding: .35rem .9rem; border-radius: .5rem; cursor: pointer }
input { font: inherit; padding: .3rem .6rem; color: inherit; background: var(--card);
        border: 1px solid var(--line); border-radius: .4rem }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
      padding: .6rem; max-height: 24rem; overflow: auto; white-space: pre-wrap;
      overflow-wrap: anywhere }
.copy { user-select: all }
.contents { columns: 16rem; padding: 0; list-style: none; font-size: .9rem }
.up { position: fixed; right: 1rem; bottom: 1rem; padding: .3rem .8rem; background: var(--card);
      border: 1px solid var(--line); border-radius: .5rem }
.soft { color: var(--soft) } .bad { color: var(--bad) }
"""
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()


def page_headers(*, style: str = f"'sha256-{STYLE_HASH}'", scripts: bool = False) -> dict[str, str]:
    """The headers of a page with this source of styles, which may run this server's scripts."""
    own = " script-src 'self'; connect-src 'self'; require-trusted-types-for 'script';"
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; style-src {style};{own if scripts else ''} base-uri 'none';"
            " form-action 'none'; frame-ancestors 'none'"
        ),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }


def whole_page(title: str, body: Iterable[str], *, script: str = "") -> str:
    """A page of lines that are HTML already, with the style above; ``script`` is a module's URL."""
    lines = [
        *("<!doctype html>", '<html lang="en">', '<meta charset="utf-8">'),
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        *(f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"),
        *([f'<script type="module" src="{escape(script)}"></script>'] if script else []),
        *body,
    ]
    return "\n".join(lines)
