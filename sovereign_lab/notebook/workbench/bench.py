"""What the workbench does, without its page: one kernel being edited, and what is known of it.

    bench = Bench("gemv_q4_0")
    bench.write(bench.state.text.replace("float sum", "double sum"))
    bench.check()

Every button is a method that runs to its end where it is called; `cancel` is for another thread. `state` is replaced
as a whole, so that whoever reads it sees one moment.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op as find_op
from sovereign_lab.measure.experiment import Experiment, experiment
from sovereign_lab.measure.ledger import Entry
from sovereign_lab.measure.memory_trace import LineTraffic
from sovereign_lab.measure.mine import DEFAULT_PHASE, Edit, edit, find_variant, keep, kept
from sovereign_lab.measure.trial.attempt import attempt
from sovereign_lab.measure.trial.card import Card
from sovereign_lab.measure.trial.counts import count_lines
from sovereign_lab.measure.worker import Worker, WorkerEnded
from sovereign_lab.notebook.card import CardView
from sovereign_lab.notebook.workbench.words import progress

T = TypeVar("T")
Action = Literal["", "check", "inspect", "time"]

TIME_LIMIT = 10.0
KEPT_TEXTS = 20
# Processes that wait for the next action; those of benches that were used before them end, and start again when needed.
RESTING_WORKERS = 2
CANCELLED = "Cancelled; the text is as it was."
NOT_MEASURED = "not measured: Time does that."


class Cancelled(LabError):
    """An action that was ended by `cancel`."""


@dataclass(frozen=True)
class Earlier:
    """A text that another has replaced, and when, as hours and minutes."""

    text: str
    at: str


@dataclass(frozen=True)
class State:
    """All that there is to see of a bench at one moment.

    `action` runs now, "" where none does; `stage` is the card's question that it is at; `says` a sentence of what it
    does or of how it ended. `card`, `heat` (by line, empty before Inspect) and `entry` (of the ledger) are of
    `card.edit`, which may not be `text` any more. `texts`: earlier ones that `text` has replaced, the oldest first.
    `placed` counts the texts that did not come from the page.
    """

    text: str
    threads: int | None = None
    rows_per_block: int | None = None
    action: Action = ""
    stage: str = ""
    says: str = ""
    tone: Literal["plain", "good", "bad"] = "plain"
    card: Card | None = None
    heat: tuple[LineTraffic, ...] = ()
    counted: str = ""
    entry: Entry | None = None
    kept: bool = False
    texts: tuple[Earlier, ...] = ()
    placed: int = 0

    @property
    def checked(self) -> bool:
        """Whether the card is of the text and the launch as they are now."""
        made = self.card.edit if self.card else None
        now = (self.text, self.threads, self.rows_per_block)
        return made is not None and (made.source, made.threads, made.rows_per_block) == now

    @property
    def view(self) -> CardView | None:
        """The card as a notebook shows it; None before the first."""
        return None if self.card is None else CardView(self.card)


class _Watched(Worker):
    """A worker that tells every step of every call."""

    def __init__(self, device: str, tell: Callable[[str], None]) -> None:
        super().__init__(device)
        self._tell = tell

    def call(
        self,
        function: Callable[..., T],
        *args: Any,
        time_limit: float | None = None,
        on_progress: Callable[[str], None] | None = None,
        **kwargs: Any,
    ) -> T:
        """See Worker.call."""

        def tell(what: str) -> None:
            self._tell(what)
            if on_progress is not None:
                on_progress(what)

        return super().call(function, *args, time_limit=time_limit, on_progress=tell, **kwargs)


class Bench:
    """One kernel of op `op` being edited, beginning with `variant` (a name, a step, or a kept kernel of yours).

    `model`: whose size Inspect and Time take; `name`: under which Keep keeps it; `phase`: where Time puts it when
    there is a prediction. `changed` is called behind every change of `state`, in whichever thread makes it. Raises
    LabError for an op, a variant, a name, a launch or a phase that cannot be.
    """

    def __init__(
        self,
        op: str = "gemv_q4_0",
        variant: str | None = None,
        model: str | None = None,
        *,
        name: str = "mine",
        threads: int | None = None,
        rows_per_block: int | None = None,
        phase: str | None = None,
        device: str = "auto",
        time_limit: float = TIME_LIMIT,
        changed: Callable[[State], None] = lambda state: None,
    ) -> None:
        found = find_op(op)
        mine = next((m for m in kept() if (m.op, m.name) == (op, variant)), None)
        self.op, self.name, self.model, self.device = op, name, model, device
        self.like = mine.like if mine else find_variant(found, variant)
        self.phase = PHASES.phase(phase or DEFAULT_PHASE).id
        self.time_limit = time_limit
        self.changed = changed
        parent = found.variant(self.like)
        self.parent_text = parent.source
        if mine is not None:
            threads, rows_per_block = threads or mine.threads, rows_per_block or mine.rows_per_block
        self.state = State(mine.source if mine else parent.source, threads, rows_per_block)
        self._edit()
        self._lock = threading.RLock()
        self._cancelled = threading.Event()
        self._worker = _Watched(device, self._told)
        self._experiment: Experiment | None = None

    # ---- the text ----

    def write(
        self, text: str, threads: int | None = None, rows_per_block: int | None = None
    ) -> None:
        """Take an edited text and its launch; None is the parent's. It may be called while an action runs."""
        self._place(text, threads=threads, rows_per_block=rows_per_block)

    def typed(self, text: str, threads: int | None, rows_per_block: int | None) -> None:
        """`write`, by a page that shows the text already."""
        self._set(text=text, threads=threads, rows_per_block=rows_per_block)

    def recall(self, number: int) -> None:
        """Bring back `state.texts[number]`; the text as it is takes its place at the end. Raises LabError for none."""
        texts = self.state.texts
        if not 0 <= number < len(texts):
            raise LabError(f"There are {len(texts)} earlier texts, counted from 0; got {number}.")
        self._refuse_while_busy()
        chosen = texts[number]
        self._place(chosen.text, says=f"The text of {chosen.at} is back.", tone="plain")

    def wake(self) -> None:
        """Start the process that runs the actions, so that the first one finds it ready."""
        _rest_others(self)
        self._worker.start()

    # ---- the buttons ----

    def check(self) -> CardView:
        """Does it compile, is it safe, is it right? The card. Raises LabError where there is none."""
        with self._at("check"):
            return self._tried()

    def inspect(self) -> CardView:
        """Check it, and count requests and sectors against the parent's, and by line for `state.heat`."""
        with self._at("inspect"):
            view = self._tried(inspect=True)
            if view.card.good:
                made = view.card.edit
                heat, counted = self._worker.call(count_lines, made, self.model)
                self._set(heat=heat, counted=counted, says=view.card.verdict)
            return view

    def time(self, predict: float | None = None, because: str = "") -> CardView:
        """Check it, and time it alone, in turn with its parent; with a prediction inside the engine too.

        `predict`: time before over time after of a whole token, and `because` the reason: both go into the ledger with
        what is measured, and the next `keep` or `revert` writes the decision there. Raises LabError for a prediction
        without a reason, and where the phase does not launch the op.
        """
        with self._at("time"):
            made = self._edit()
            asked = None
            if predict is not None:
                if not because.strip():
                    raise LabError(
                        "A prediction has a reason: say in `because` why it should be faster, and time it again."
                    )
                asked = experiment(
                    f"{made.op}:{made.name}, edited from {made.like}", because, predict=predict,
                    baseline=self.phase, change={made.op: made}, model=self.model, device=self.device,
                )  # fmt: skip
            view = self._tried(time=True)
            if asked is not None and view.card.good:
                entry = asked.run(self._worker, progress=False)
                self._experiment = asked
                self._set(entry=entry, says=_of_entry(entry))
            return view

    def keep(self) -> Edit:
        """Keep the kernel under its name, and write that into the ledger where it was timed with a prediction.

        Raises LabError where the text as it is has not been checked, or is not right and safe.
        """
        self._refuse_while_busy()
        state = self.state
        if state.card is None or not state.checked:
            raise LabError("Check it first: what is kept is a kernel whose card is there.")
        if not state.card.good:
            raise LabError(f"It is not kept, since it is not good. {state.card.verdict}")
        made = state.card.edit
        keep(made)
        written = self._decide("keep")
        self._set(kept=True, says=f"Kept as {made.op}:{made.name}.{written}", tone="good")
        return made

    def revert(self) -> None:
        """Put the parent's source and launch back; the edited text goes to `state.texts`."""
        self._refuse_while_busy()
        state = self.state
        written = self._decide("revert")
        says = f"This is {self.like} again; your text is in the list of earlier ones."
        if state.text == self.parent_text:
            says = f"This is {self.like}, as it was."
        self._place(
            self.parent_text, threads=None, rows_per_block=None, says=says + written, tone="plain"
        )

    def cancel(self) -> None:
        """End the action that runs in another thread; it raises Cancelled. Without effect where none runs."""
        with self._lock:
            if not self.state.action:
                return
            self._cancelled.set()
            self._set(says="Cancelling.")
        self._worker.cancel()

    def close(self) -> None:
        """End the bench's process; a later action starts another."""
        self.cancel()
        self._worker.close()

    # ---- how they work ----

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self.state = replace(self.state, **changes)
            self.changed(self.state)

    def _place(self, text: str, **changes: Any) -> None:
        """Put another text in place of the one there is, which goes to the earlier ones where it is an edit."""
        with self._lock:
            state = self.state
            texts = tuple(t for t in state.texts if t.text not in (text, state.text))
            if state.text not in (text, self.parent_text):
                texts = (*texts, Earlier(state.text, time.strftime("%H:%M")))
            self._set(text=text, texts=texts[-KEPT_TEXTS:], placed=state.placed + 1, **changes)

    def _edit(self) -> Edit:
        state = self.state
        return edit(
            self.op, state.text, self.like, name=self.name, threads=state.threads,
            rows_per_block=state.rows_per_block,
        )  # fmt: skip

    def _refuse_while_busy(self) -> None:
        if self.state.action:
            raise LabError(
                f"The workbench is still at work ({self.state.action}): wait for it, or cancel it."
            )

    @contextmanager
    def _at(self, action: Action) -> Iterator[None]:
        """Hold the bench for one action, and say how it ended."""
        with self._lock:
            self._refuse_while_busy()
            self._cancelled.clear()
            self._set(action=action, stage="", says="Starting.", tone="plain")
        _rest_others(self)
        try:
            yield
        except (Cancelled, WorkerEnded) as ended:
            if isinstance(ended, WorkerEnded) and ended.reason != "cancelled":
                self._set(says=str(ended), tone="bad")
                raise
            self._set(says=CANCELLED, tone="plain")
            raise Cancelled(CANCELLED) from None
        except BaseException as error:
            says = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
            self._set(says=says, tone="bad")
            raise
        finally:
            self._set(action="", stage="")

    def _told(self, doing: str) -> None:
        if self._cancelled.is_set():
            raise Cancelled(CANCELLED)
        stage, says = progress(doing, self.name)
        self._set(stage=stage or self.state.stage, says=says or self.state.says)

    def _tried(self, **asked: bool) -> CardView:
        """The card of the text as it is, which takes the place of all that was known."""
        made = self._edit()
        options = {
            "name": made.name, "threads": made.threads, "rows_per_block": made.rows_per_block,
            "seconds": self.time_limit, "model": self.model, **asked,
        }  # fmt: skip
        card = _in_own_words(attempt(self._worker, made, options, self.time_limit))
        self._experiment = None
        before = self.state.card
        if before is None or before.edit != made:  # the counts of the same text stay
            self._set(heat=(), counted="", kept=False)
        self._set(
            card=card, entry=None, says=card.verdict, tone="good" if card.good else "bad"
        )  # fmt: skip
        return CardView(card)

    def _decide(self, decision: Literal["keep", "revert"]) -> str:
        """Write the decision down where an experiment waits for one; a sentence that says so, or ""."""
        asked, self._experiment = self._experiment, None
        if asked is None or asked.entry is None:
            return ""
        entry = asked.decide(decision, f"in the workbench; measured: {asked.entry.proposal}")
        self._set(entry=entry)
        return f" The ledger says so under {entry.id}."


def _of_entry(entry: Entry) -> str:
    """What an experiment found, and what is left to do."""
    if not entry.measured:
        return (
            f"In the engine: {entry.proposal}. Keep or Revert writes your decision into the ledger."
        )
    return (
        f"In the engine {entry.measured} times as fast, predicted {entry.setup.predicted:g}: {entry.proposal}. "
        "Keep or Revert writes your decision into the ledger."
    )


def _in_own_words(card: Card) -> Card:
    """The card, in which what was not measured names the workbench's button."""
    if card.alone or card.engine or not card.good:
        return card
    stages = (
        replace(s, says=NOT_MEASURED) if s.question == "faster" and s.answer == "unknown" else s
        for s in card.stages
    )
    return replace(card, stages=tuple(stages))


# ---- processes of benches that nobody uses ----

_USED: list["weakref.ref[Bench]"] = []
_USED_LOCK = threading.Lock()


def _rest_others(bench: Bench) -> None:
    """End the idle processes of all but the benches used last: a cell that is run again leaves one behind each time."""
    with _USED_LOCK:
        alive = [r for r in _USED if r() is not None and r() is not bench]
        _USED[:] = [*alive, weakref.ref(bench)]
        old = [r() for r in alive[:-RESTING_WORKERS]]
    for other in old:
        if other is not None and not other.state.action:
            other._worker.close()
