"""The widgets: `Panel` is what the page shows, `Explorer` a panel whose picture follows its controls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from sovereign_lab.errors import LabError
from sovereign_lab.notebook.panels.controls import Control, Values, settled, spec
from sovereign_lab.notebook.panels.svg import alone, table, tag

FOLDER = Path(__file__).parent
Synced = Any  # a list or a dict; traitlets' own types say nothing of what is in it
# Pixels that a picture is drawn for: the page asks for one of the two, as wide as it is itself.
WIDE, NARROW = 760, 380


class Panel(anywidget.AnyWidget):
    """Controls, buttons, columns of text and a view. `values` goes both ways; all else goes to the page."""

    _esm = FOLDER / "page.js"
    _css = FOLDER / "page.css"
    name = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    controls: Synced = traitlets.List().tag(sync=True)
    values: Synced = traitlets.Dict().tag(sync=True)
    buttons: Synced = traitlets.List().tag(sync=True)
    enabled: Synced = traitlets.List().tag(sync=True)
    columns: Synced = traitlets.List().tag(sync=True)
    view = traitlets.Unicode().tag(sync=True)
    status = traitlets.Unicode().tag(sync=True)
    error = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
    width = traitlets.Int(WIDE).tag(sync=True)

    def stand_in(self) -> tuple[str, str]:
        """(HTML, text) for a page that runs no script."""
        return tag("p", escape(self.title)), self.title

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        if bundle is None:
            return None
        data, *metadata = bundle if isinstance(bundle, tuple) else (bundle,)
        html, plain = self.stand_in()
        return ({**data, "text/html": html, "text/plain": plain}, *(metadata or [{}]))


@dataclass(frozen=True)
class Drawing:
    """What an explorer shows for one setting of its controls.

    `picture`: SVG. `facts`: rows of text, the first cell names the row. `note`: what the figures are and where they
    come from.
    """

    picture: str
    facts: Sequence[Sequence[str]]
    note: str = ""

    @property
    def html(self) -> str:
        """All of it, for the page."""
        return self.picture + table(self.facts) + (tag("p", escape(self.note)) if self.note else "")

    def __str__(self) -> str:
        wide = max((len(row[0]) for row in self.facts), default=0)
        lines = ["  ".join([first.ljust(wide), *rest]).rstrip() for first, *rest in self.facts]
        return "\n".join([*lines, *([self.note] if self.note else [])])


@dataclass(frozen=True)
class Exploration:
    """What `Explorer` needs: `controls` for some values, `draw` from settled values and a width in pixels.

    `follow` gives the values after a change, from those before and those sent: where one control sets others.
    """

    name: str
    title: str
    start: Values
    controls: Callable[[Values], Sequence[Control]]
    draw: Callable[[Values, int], Drawing]
    follow: Callable[[Values, Values], Values] = lambda before, sent: sent

    def settle(self, before: Values, sent: Values) -> dict[str, Any]:
        """`sent` as the controls allow it. Raises LabError for a value that none of them takes."""
        wanted = self.follow(before, sent)
        return settled(self.controls(wanted), wanted)


class Explorer(Panel):
    """Draws again at every change; a setting that is refused is told, and the picture stays."""

    def __init__(self, exploration: Exploration) -> None:
        self._exploration = exploration
        self._settled = exploration.settle(exploration.start, exploration.start)
        self.drawing = exploration.draw(self._settled, WIDE)
        super().__init__(
            name=exploration.name,
            title=exploration.title,
            controls=[spec(c) for c in exploration.controls(self._settled)],
            values=self._settled,
            view=self.drawing.html,
        )
        self.observe(self._changed, ["values", "width"])

    def set(self, **values: Any) -> None:
        """Set controls from Python, as a hand in the page would."""
        self.values = {**self.values, **values}

    def stand_in(self) -> tuple[str, str]:
        html = alone(tag("p", tag("b", escape(self.title))) + self.drawing.html)
        return html, f"{self.title}\n{self.drawing}"

    def _changed(self, _: Mapping[str, Any]) -> None:
        try:
            values = self._exploration.settle(self._settled, self.values)
            self.drawing = self._exploration.draw(values, self.width)
        except LabError as error:
            self.error = str(error)
            return
        self._settled = values
        self.error = ""
        self.controls = [spec(c) for c in self._exploration.controls(values)]
        if values != self.values:
            self.unobserve(self._changed, ["values", "width"])
            self.values = values
            self.observe(self._changed, ["values", "width"])
        self.view = self.drawing.html
