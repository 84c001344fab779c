"""The workbench's page: an anywidget around a bench, whose actions run in a thread of their own."""

import os
import threading
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from sovereign_lab.errors import LabError
from sovereign_lab.notebook.workbench.bench import Bench, State
from sovereign_lab.notebook.workbench.page import now, page
from sovereign_lab.notebook.workbench.picture import picture

STATIC = Path(__file__).resolve().parent / "static"
LONG = ("check", "inspect", "time")  # in a thread of their own


class Workbench(anywidget.AnyWidget):
    """A bench as a page shows it: `text` goes both ways, `now` and `shown` from here to the page.

    The page asks by messages {"do": ..., "id": ..., "text": ..., "threads": ..., "rows_per_block": ...}. Each is
    answered at once by {"heard": id}, by {"refused": sentence} where it cannot be, and at its end by {"done": id}.
    """

    _esm = STATIC / "workbench.js"
    _css = STATIC / "workbench.css"
    text = traitlets.Unicode().tag(sync=True)
    now = traitlets.Dict().tag(sync=True)
    shown = traitlets.Dict().tag(sync=True)
    place = traitlets.Unicode().tag(sync=True)

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        # Under which the page keeps the text: the notebook that asks, as jupyter_server names it.
        place = f"{os.environ.get('JPY_SESSION_NAME', '')}:{bench.op}:{bench.like}:{bench.name}"
        self._placed = bench.state.placed
        self._awake = True  # while the first text is set, which nobody has typed
        super().__init__(
            text=bench.state.text, now=now(bench.state), shown=page(bench), place=place
        )
        self._awake = False
        bench.changed = self._changed
        self.on_msg(self._asked)

    def close(self) -> None:
        """Take the page away, and end the bench's process."""
        self.bench.changed = lambda state: None
        self.bench.close()
        super().close()

    def __repr__(self) -> str:
        bench = self.bench
        head = f"A workbench for {bench.op}:{bench.name}, edited from {bench.like}"
        view = bench.state.view
        return f"{head}\n\n{bench.state.text}" + (f"\n{view!r}" if view else "")

    def _repr_html_(self) -> str:
        return picture(self.bench)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The page, and for readers without its script the picture."""
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "text/plain": repr(self), "text/html": picture(self.bench)}, metadata

    @traitlets.observe("text")
    def _typed(self, change: Any) -> None:
        state = self.bench.state
        if change["new"] != state.text:
            self.bench.typed(change["new"], state.threads, state.rows_per_block)
        if not self._awake and not state.action:
            self._awake = True
            threading.Thread(target=self.bench.wake, daemon=True).start()

    def _changed(self, state: State) -> None:
        if state.placed != self._placed:
            self._placed = state.placed
            self.text = state.text
        self.now = now(state)
        self.shown = page(self.bench)

    # ---- what the page asks for ----

    def _asked(self, _: Any, content: dict[str, Any], __: Any) -> None:
        number = content.get("id")
        self.send({"heard": number})
        if content.get("do") in LONG:
            threading.Thread(target=self._perform, args=(number, content), daemon=True).start()
        else:
            self._perform(number, content)

    def _perform(self, number: Any, content: dict[str, Any]) -> None:
        try:
            self._do(content)
        except LabError as error:
            if str(error) != self.bench.state.says:
                self.send({"refused": str(error)})
        finally:
            self.send({"done": number})

    def _do(self, content: dict[str, Any]) -> None:
        bench, what = self.bench, content.get("do")
        if "text" in content and what != "cancel":
            launch = (_size(content, "threads"), _size(content, "rows_per_block"))
            bench.typed(str(content["text"]), *launch)
        if what == "recall":
            bench.recall(int(content["number"]))
        elif what == "time" and content.get("predict") is not None:
            bench.time(float(content["predict"]), str(content["because"]))
        elif what in (*LONG, "keep", "revert", "cancel"):
            getattr(bench, what)()
        else:
            raise LabError(f"The workbench knows no action {what!r}.")


def _size(content: dict[str, Any], name: str) -> int | None:
    value = content.get(name)
    return None if value is None else int(value)
