"""One turn of the loop: a hypothesis with a prediction, one change, a check, a measurement, a proposal, a decision.

Everything that runs a changed kernel runs in a worker process, and the ledger is written by this one: whatever the
kernel does, the experiment ends in the ledger.
"""

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path

from sovereign_lab.engine import PHASES
from sovereign_lab.errors import LabError
from sovereign_lab.measure.experiment.job import (
    MIN_ROUNDS,
    Job,
    Outcome,
    Place,
    changed_kernels,
    examine,
    prepare,
)
from sovereign_lab.measure.experiment.progress import bar, watched
from sovereign_lab.measure.ledger import Entry, read_entry
from sovereign_lab.measure.ledger.file import ledger_path, opened
from sovereign_lab.measure.ledger.records import Decision, Setup, begin, fail, finish
from sovereign_lab.measure.mine import Edit, check_engine, edit, find_any
from sovereign_lab.measure.worker import Worker


class Experiment:
    """A question that has been asked and not yet answered; `experiment` makes it, `run` answers it."""

    def __init__(
        self, title: str, hypothesis: str, predicted: float, job: Job, device: str
    ) -> None:
        self.title = title
        self.hypothesis = hypothesis
        self.predicted = predicted
        self.job = job
        self.device = device
        self.entry: Entry | None = None
        self._measured: tuple[Path, int, Outcome] | None = None

    def run(self, worker: Worker | None = None, progress: bool | None = None) -> Entry:
        """Check, measure in turn, and write all of it into the ledger; its entry there, which proposes what to do.

        A change whose results are wrong is not timed. An error, an interrupt or a kernel that ends its process is
        written down as well, and raised. `worker`: one that is running, in place of one for this run alone; it decides
        on the device. `progress` shows a bar of the rounds, by default where a person watches. Raises LabError for a
        ledger that cannot be written, before anything runs.
        """
        path = ledger_path()
        with opened(path):
            pass  # a measurement that cannot be written down is not begun
        if worker is None:
            with Worker(self.device) as own:
                self._measure(own, path, progress)
        else:
            self._measure(worker, path, progress)
        return self.save()

    def save(self) -> Entry:
        """Write down what `run` measured: to be called again where the ledger could not be written then.

        Raises LabError before `run`, and for a ledger that still cannot be written.
        """
        if self._measured is None:
            raise LabError("There is nothing to write down yet: run the experiment first.")
        path, number, outcome = self._measured
        try:
            finish(path, number, *outcome)
        except LabError as error:
            raise LabError(
                f"{error} What was measured is still in this experiment: call its save() when that is mended."
            ) from error
        self.entry = read_entry(path, number)
        return self.entry

    def _measure(self, worker: Worker, path: Path, progress: bool | None) -> None:
        place = worker.call(prepare, self.job)
        number = begin(path, self._setup(place))
        try:
            with bar(place.rounds, watched() if progress is None else progress) as tell:
                outcome = worker.call(
                    examine, self.job, place.tokens, place.rounds, on_progress=tell
                )
        except BaseException as error:
            told = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
            if isinstance(error, KeyboardInterrupt):
                told = "It was interrupted."
            with contextlib.suppress(LabError):  # the error that came first is the one to see
                fail(path, number, told)
            raise
        self._measured = path, number, outcome

    def _setup(self, place: Place) -> Setup:
        return Setup(
            title=self.title,
            hypothesis=self.hypothesis,
            predicted=self.predicted,
            baseline=self.job.baseline,
            phase=self.job.phase,
            model=place.model,
            environment=place.environment,
            position=self.job.position,
            tokens=place.tokens,
            kernels=changed_kernels(self.job),
        )

    def decide(self, decision: Decision, why: str) -> Entry:
        """Write down what the learner does, "keep" or "revert", and why. Raises LabError before `run`."""
        if self.entry is None:
            raise LabError("There is nothing to decide on yet: run the experiment first.")
        self.entry = self.entry.decide(decision, why)
        return self.entry

    def __repr__(self) -> str:
        if self.entry is not None:
            return repr(self.entry)
        return (
            f"Experiment: {self.title}\n  hypothesis: {self.hypothesis}\n"
            f"  change:     {self.job.name}, against phase {self.job.baseline}\n"
            f"  predicted:  {self.predicted:g} times as fast\n  not run yet: .run()"
        )


def experiment(
    title: str,
    hypothesis: str,
    *,
    predict: float,
    baseline: str | None = None,
    change: Mapping[str, str | Edit] | None = None,
    phase: str | None = None,
    model: str | Path | None = None,
    device: str | None = None,
    position: int = 16,
    tokens: int | None = None,
    rounds: int | None = None,
    time_limit: float | None = None,
) -> Experiment:
    """Ask whether one change makes the engine faster, and say beforehand by how much.

    `predict`: time before over time after, 1.5 for half as fast again. The change is either `phase`, of the ladder, or
    `change`: by op, the name of a variant or of a kernel of yours, its source, launched as the baseline's variant is,
    or an `edit` with a launch of its own. `baseline`: the phase that it is made to, by default the one that `phase`
    builds on, and 8b for kernels. `model`: a name of the catalog or a path; `device`: as for open_device, "auto" by
    default. `rounds` pairs of samples, each the mean of `tokens` forward passes from `position` on; by default 11 of
    16 on a GPU, and 5 of 2 on the SIMT device. `time_limit`: seconds that a step of the change may take, by default at
    least 10, and 30 times the baseline's. Raises LabError for what cannot be asked.
    """
    if not title.strip() or not hypothesis.strip():
        raise LabError(
            "An experiment has a title and a hypothesis: what you change, and why it should help."
        )
    if not (math.isfinite(predict) and predict > 0):
        raise LabError(
            f"A prediction is time before over time after, 1.5 for half as fast again; got {predict}."
        )
    if bool(change) == (phase is not None):
        raise LabError(
            'An experiment changes one thing: give `change`, as in {"gemv_q4_0": "mine"}, or `phase`.'
        )
    for name, value in (("model", model), ("device", device)):
        if not isinstance(value, (str, Path, type(None))):
            raise LabError(
                f"An experiment runs in a process of its own: give the {name}'s name, not the {name}."
            )
    if (
        (rounds is not None and rounds < MIN_ROUNDS)
        or (tokens is not None and tokens < 1)
        or position < 0
    ):
        raise LabError(
            f"An experiment takes at least {MIN_ROUNDS} rounds of at least 1 token, from position 0 or a later one; "
            f"got rounds={rounds}, tokens={tokens}, position={position}."
        )
    if baseline is None:
        baseline = "8b" if phase is None else PHASES.phase(phase).base or phase
    for name in (baseline, phase or baseline):
        PHASES.phase(name)
    job = Job(
        model=None if model is None else str(model),
        baseline=baseline,
        phase=phase,
        kernels={o: _kernel(o, chosen, baseline) for o, chosen in (change or {}).items()},
        position=position,
        tokens=tokens,
        rounds=rounds,
        time_limit=time_limit,
    )
    return Experiment(title.strip(), hypothesis.strip(), float(predict), job, device or "auto")


def _kernel(op_name: str, chosen: str | Edit, baseline: str) -> str | Edit:
    """What a worker can be sent: a name that the registry has, or an edit."""
    if isinstance(chosen, Edit):
        if chosen.op != op_name:
            raise LabError(f"The edit {chosen.name} is one of {chosen.op}, not of {op_name}.")
        kernel: str | Edit = chosen
    elif "__global__" in chosen:
        kernel = edit(op_name, chosen, PHASES[baseline].plan.get(op_name))
    else:
        found = find_any(op_name, chosen)
        kernel = found if isinstance(found, Edit) else chosen
    check_engine(op_name, baseline)
    return kernel
