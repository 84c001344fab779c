"""SVG that an explorer draws with: it takes the page's text colour, and blue and orange that fit its theme.

On its own, without the page's style, the same text is a picture that reads on light and on dark: see `alone`.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

# The page sets these; a picture that stands alone has the values behind them.
INK, FAINT, BLUE, ORANGE = "var(--sl-text)", "var(--sl-faint)", "var(--sl-blue)", "var(--sl-orange)"
ON_BLUE = "var(--sl-on-blue)"
ALONE = {INK: "#7a7a7a", FAINT: "#9a9a9a", BLUE: "#0072B2", ORANGE: "#D55E00", ON_BLUE: "#fff"}
MONOSPACE = "Menlo, Consolas, DejaVu Sans Mono, monospace"


def tag(name: str, inner: str = "", /, **attributes: Any) -> str:
    """An element; underscores in the names of attributes become dashes, None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{inner}</{name}>"


def _text(value: Any) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def rect(x: float, y: float, width: float, height: float, hover: str = "", **more: Any) -> str:
    """A rectangle; `hover` is shown under the pointer and read out."""
    inner = tag("title", escape(hover)) if hover else ""
    return tag(
        "rect", inner, x=float(x), y=float(y), width=float(width), height=float(height), **more
    )


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12, **more: Any) -> str:
    """A line of text in the page's colour."""
    style = {"fill": INK, "font_size": size, "text_anchor": anchor} | more
    return tag("text", escape(words), x=float(x), y=float(y), **style)


def line(x1: float, y1: float, x2: float, y2: float, **more: Any) -> str:
    """A straight line, faint unless told otherwise."""
    style = {"stroke": FAINT} | more
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), **style)


def polyline(points: Iterable[tuple[float, float]], **more: Any) -> str:
    """A line through points."""
    return tag(
        "polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), fill="none", **more
    )


def picture(parts: Iterable[str], width: int, height: float, label: str, role: str = "img") -> str:
    """The whole picture; `label` says what it shows, for who does not see it. "group" where parts can be picked."""
    return tag(
        "svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height:.0f}", width=width,
        role=role, aria_label=label, font_family="var(--jp-ui-font-family, sans-serif)",
    )  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> str:
    """Facts as HTML: the first cell of a row names it."""
    lines = (
        tag(
            "tr",
            tag("th", escape(first), scope="row") + "".join(tag("td", escape(c)) for c in rest),
        )
        for first, *rest in rows
    )
    return tag("table", tag("tbody", "".join(lines)))


def alone(html: str) -> str:
    """`html` with colours of its own, its pictures as images: for a page without the panel's script and style."""
    for name, value in ALONE.items():
        html = html.replace(name, value)
    html = html.replace("var(--jp-ui-font-family, sans-serif)", "sans-serif")
    start = html.find("<svg")
    if start < 0:
        return html
    end = html.index("</svg>") + len("</svg>")
    label = html[start:end].split('aria-label="', 1)[1].split('"', 1)[0]
    data = b64encode(html[start:end].encode()).decode()
    image = f'<img alt="{label}" src="data:image/svg+xml;base64,{data}">'
    return html[:start] + image + alone(html[end:])
