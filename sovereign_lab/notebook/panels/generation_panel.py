"""`sl.generation_panel`: a prompt, sliders, and text as it is generated; two phases side by side."""

import threading
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sovereign_lab.devices import Device, open_device
from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.models import catalog
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.notebook.panels.controls import (
    Choice,
    Control,
    Number,
    Text,
    Toggle,
    settled,
    spec,
)
from sovereign_lab.notebook.panels.generation import (
    Column,
    PanelEngine,
    Request,
    Stopped,
    comparison,
    speed,
    stream_columns,
)
from sovereign_lab.notebook.panels.svg import table, tag
from sovereign_lab.notebook.panels.widget import Panel

SHOW_SECONDS = 0.08  # between two updates of the page: more often is not seen, and fills its queue
BUTTONS = [
    {"name": "start", "label": "Start", "help": "Generate with these settings"},
    {"name": "stop", "label": "Stop", "help": "End the text at the next token"},
]
GIVEN = "given"  # the option for a model that was handed over loaded


class GenerationPanel(Panel):
    """See `generation_panel`. `start` and `stop` do what the buttons do; `results` has the texts."""

    def __init__(self, model: Model | str | None, device: Device | str | None) -> None:
        self._stopped = threading.Event()
        self._device = device
        self._models: dict[str, Model] = {GIVEN: model} if isinstance(model, Model) else {}
        names = _names(model)
        self._controls = _controls(names)
        self._engines: list[PanelEngine] = []
        self._columns: tuple[Column, ...] = ()
        self._thread: threading.Thread | None = None
        start = {
            "prompt": "Once upon a time", "model": names[0][0], "phase": "8b", "compare": False, "other": "5",
            "temperature": 0.0, "top_p": 1.0, "seed": 0, "max_tokens": 120, "stop": "",
        }  # fmt: skip
        super().__init__(
            name="generation",
            title="Generate text",
            controls=[spec(c) for c in self._controls],
            values=start,
            buttons=BUTTONS,
            enabled=["start"],
            columns=[{"title": str(PHASES["8b"]), "prompt": "", "text": "", "speed": ""}],
        )
        self.on_msg(lambda _, content, __: self._pressed(content))

    @property
    def results(self) -> tuple[Column, ...]:
        """The columns of the last text, as far as they are."""
        return self._columns

    def start(self) -> None:
        """Begin with the settings of the moment, in a thread of its own; nothing where a text is under way.

        What is refused stands in `error`, and the last text stays.
        """
        if self.busy:
            return
        try:
            values = settled(self._controls, self.values)
        except LabError as error:
            self.error = str(error)
            return
        self._stopped = threading.Event()
        self.error, self.busy, self.enabled = "", True, ["stop"]
        self._thread = threading.Thread(
            target=self._work, args=(values, self._stopped), name="generation panel", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the text at the next token; what there is of it stays."""
        self._stopped.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is generated any more; whether that is so after so many seconds."""
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.busy

    def close(self) -> None:
        self.stop()
        super().close()

    def stand_in(self) -> tuple[str, str]:
        settings = [[c.label, _said(c, self.values[c.name])] for c in self._controls]
        texts = [f"phase {c.phase}: {c.prompt}{c.text}" for c in self._columns]
        html = tag("p", tag("b", self.title)) + table(settings)
        html += "".join(tag("pre", escape(text), style="white-space: pre-wrap") for text in texts)
        return html, "\n".join([self.title, *(": ".join(row) for row in settings), *texts])

    def _pressed(self, content: Any) -> None:
        action = content.get("action") if isinstance(content, Mapping) else None
        if action == "start":
            self.start()
        elif action == "stop":
            self.stop()

    # ---- in the thread ----

    def _work(self, values: Mapping[str, Any], stopped: threading.Event) -> None:
        try:
            phases = [values["phase"], *([values["other"]] if values["compare"] else [])]
            engines = self._made(values["model"], phases, stopped)
            request = Request(**{name: values[name] for name in Request.__dataclass_fields__})
            self._generate(engines, request)
        except Stopped:
            self.status = f"Stopped. {comparison(self._columns, values['temperature'])}".strip()
        except LabError as error:
            self.status, self.error = "", str(error)
        except Exception as error:  # shown, since nobody looks at a thread's end
            self.status, self.error = "", f"The generation failed: {type(error).__name__}: {error}"
        finally:
            self._show()
            self.enabled, self.busy = ["start"], False

    def _made(
        self, name: str, phases: Sequence[str], stopped: threading.Event
    ) -> list[PanelEngine]:
        """An engine a column; those of the last text serve again where model and phase are the same."""
        if name not in self._models:
            self.status = f"Loading {name}."
            # One model at a time, and the one that was handed over: they can be large.
            self._engines = []
            self._models = {k: m for k, m in self._models.items() if k == GIVEN}
            self._models[name] = load_model(name)
        model = self._models[name]
        if not isinstance(self._device, Device):
            self._device = open_device(self._device or "auto")
        old = [engine for engine in self._engines if engine.model is model]
        engines: list[PanelEngine] = []
        for phase in phases:
            if stopped.is_set():
                raise Stopped
            again = next((e for e in old if e.phase.id == phase), None)
            if again is None:
                self.status = f"Compiling the kernels of phase {phase}."
                kin = [e for e in [*engines, *self._engines] if e.model is model]
                # Whoever has weights in tiles has them in the other layouts as well.
                like = max(kin, key=lambda e: (bool(e.tiles), bool(e.split)), default=None)
                again = PanelEngine(model, self._device, phase, like)
            else:
                old.remove(again)
            again.stopped = stopped
            engines.append(again)
        self._engines = engines
        return engines

    def _generate(self, engines: Sequence[PanelEngine], request: Request) -> None:
        shown = 0.0
        for columns in stream_columns(engines, request):
            self._columns = columns
            if time.perf_counter() - shown >= SHOW_SECONDS:
                self.status = "Generating."
                self._show()
                shown = time.perf_counter()
        self.status = f"Done. {comparison(self._columns, request.temperature)}".strip()

    def _show(self) -> None:
        if self._columns and isinstance(self._device, Device):
            self.columns = [
                {
                    "title": str(PHASES[column.phase]), "prompt": column.prompt, "text": column.text,
                    "speed": speed(column, self._device),
                }
                for column in self._columns
            ]  # fmt: skip


def _said(control: Control, value: Any) -> str:
    """A value as the page shows it: of a choice its label."""
    labels = dict(control.options) if isinstance(control, Choice) else {}
    return labels.get(value, str(value))


def _names(model: Model | str | None) -> list[tuple[str, str]]:
    """The models to choose from, the one asked for first: what is here, and the default, which can be made here."""
    names = [e.name for e in catalog.entries() if e.present or e.name == catalog.DEFAULT]
    options = [(name, name) for name in names]
    if isinstance(model, Model):
        return [(GIVEN, f"{model.config.name}, as given"), *options]
    if model is None:
        return options
    catalog.resolve(model)
    return [(model, model), *(o for o in options if o[0] != model)]


def _controls(models: Sequence[tuple[str, str]]) -> list[Control]:
    phases = [(p, f"{p}: {PHASES[p].title}") for p in PHASES.timed()]
    return [
        Text("prompt", "Prompt", lines=3),
        Choice("model", "Model", models),
        Choice("phase", "Phase", phases, steps=True),
        Toggle("compare", "Compare with a second phase", "The same prompt and seed, side by side"),
        Choice("other", "Second phase", phases, steps=True, when="compare"),
        Number("temperature", "Temperature", 0, 5, 0.1, help="0: always the likeliest token"),
        Number("top_p", "Top-p", 0, 1, 0.05, help="1: all tokens"),
        Number("seed", "Seed", 0, whole=True, help="The same seed draws the same text"),
        Number("max_tokens", "Max tokens", 1, whole=True),
        Text("stop", "Stop string", help="The text ends before it; empty: none"),
    ]


def generation_panel(
    model: Model | str | None = None, device: Device | str | None = None
) -> GenerationPanel:
    """A panel that generates text: prompt, model, phase, temperature, top-p, stop string; two phases side by side.

    `model`: the one to begin with, loaded, or a name or path; the list has those that are on this machine. `device`:
    "cuda", "simt", or a device that nothing else uses meanwhile; without one the panel opens its own at the first
    text. Texts are generated in a thread, so that the notebook's cells can run beside it. Raises LabError for an
    unknown model; what the settings get wrong is told in the panel.
    """
    return GenerationPanel(model, device)
