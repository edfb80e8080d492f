"""The HTML of a report: the page with its style, and its tables, figures and sections.

Every function takes plain text and escapes it. The page loads nothing and runs no script.
"""

from collections.abc import Sequence
from html import escape

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>S2Sent report: {title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c2024; --page: #fff; --faint: #6a7178; --line: #d9dde1;
  --stripe: #f4f6f8; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e3e6e9; --page: #16191c; --faint: #9aa2aa; --line: #343a40; --stripe: #1e2226; }}
}}
body {{ margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: var(--ink);
  background: var(--page); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; overflow-wrap: anywhere; }}
h2 {{ margin-top: 3rem; font-size: 1.2rem; border-bottom: 1px solid var(--line); }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums;
  width: 100%; }}
th, td {{ padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }}
th:first-child {{ text-align: left; font-weight: normal; white-space: normal;
  overflow-wrap: anywhere; }}
tr:first-child th {{ font-weight: 600; }}
th.across {{ background: var(--stripe); color: var(--faint); padding-top: .5rem; }}
.difference, .absent, figcaption {{ color: var(--faint); }}
figure {{ margin: 1.5rem 0; }}
figcaption {{ font-size: .9rem; }}
svg {{ width: 100%; height: auto; }}
svg text {{ font-family: system-ui, sans-serif !important; }}
code {{ font-size: .8rem; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
{sections}
<section>
<h2>This file</h2>
<p>Made by <code>{command}</code></p>
</section>
</body>
</html>
"""


def page(title: str, summary: str, sections: Sequence[str], command: str) -> str:
    """A whole page; ``summary`` and ``sections`` are HTML, ``title`` and ``command`` are text."""
    return PAGE.format(
        title=escape(title),
        summary=summary,
        sections="\n".join(sections),
        command=escape(command),
    )


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table; a body row of one cell is a heading over all columns."""
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in body:
        if len(row) == 1:
            lines.append(f'<tr><th class="across" colspan="{len(head)}">{escape(row[0])}</th></tr>')
            continue
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        kind = ' class="difference"' if row[0].startswith("·") else ""
        lines.append(f"<tr{kind}><th>{escape(row[0])}</th>{cells}</tr>")
    return '<div class="table"><table>\n' + "\n".join(lines) + "\n</table></div>"


def figure(svg: str, reading: str, command: str) -> str:
    """An SVG drawing with how to read it and the command that makes it."""
    return (
        f"<figure>{svg}<figcaption>{escape(reading)}"
        f"<br><code>{escape(command)}</code></figcaption></figure>"
    )


def section(title: str, *parts: str) -> str:
    """A heading and its parts; a part that is not an HTML element becomes a paragraph."""
    content = "\n".join(
        part if part.startswith("<") else f"<p>{escape(part)}</p>" for part in parts
    )
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>"


def absent(why: str) -> str:
    """A paragraph that says why a section has no content."""
    return f'<p class="absent">{escape(why)}</p>'
