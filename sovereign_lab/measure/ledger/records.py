"""What is written into a ledger, and when: at the beginning of an experiment, at its end, and at a decision.

An experiment is written down before anything of it runs, and completed in one transaction when it has ended: a process
that is killed loses the experiment in flight, which stays in the ledger as unfinished.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from typing import Literal

from sovereign_lab.errors import LabError
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.ledger.file import opened

State = Literal["unfinished", "measured", "wrong", "failed"]
Decision = Literal["keep", "revert"]


@dataclass(frozen=True)
class KernelChange:
    """An op's new kernel and the baseline's, both as text. `base_name` is "" where the baseline lacks the op.

    `rows_per_block`, `shared_bytes` and `cooperative` as in Variant; `shared_bytes` is None where the variant works it
    out. `grid`: blocks, None for as many as cover the work.
    """

    op: str
    name: str
    threads: int
    rows_per_block: int | None
    shared_bytes: int | None
    source: str
    base_name: str
    base_source: str
    grid: int | None = None
    cooperative: bool = False

    @property
    def launch(self) -> str:
        """How it is launched, as far as one tells a launch from another."""
        words = [f"{self.threads} threads a block"]
        words += [] if self.grid is None else [f"a grid of {self.grid}"]
        return ", ".join(words + (["cooperative"] if self.cooperative else []))

    def diff(self) -> str:
        """What changes from the baseline's source to this one, as `diff -u` says it."""
        lines = unified_diff(
            self.base_source.splitlines(),
            self.source.splitlines(),
            self.base_name,
            self.name,
            lineterm="",
        )
        return "\n".join(lines)


@dataclass(frozen=True)
class Setup:
    """What an experiment is about to do. `predicted`: base ms / change ms. `phase`: of the ladder, where it is one.

    A sample is the mean of `tokens` forward passes from `position` on.
    """

    title: str
    hypothesis: str
    predicted: float
    baseline: str
    phase: str | None
    model: str
    environment: Mapping[str, str]
    position: int
    tokens: int
    kernels: tuple[KernelChange, ...]

    @property
    def change(self) -> str:
        """The phase, or each op with its kernel."""
        if self.phase is not None:
            return f"phase {self.phase}"
        return ", ".join(f"{k.op}: {k.name}" for k in self.kernels)


@dataclass(frozen=True)
class Checks:
    """Whether the changed engine still computes the same.

    `logits_error`: the largest difference to the NumPy reference's logits on a short text, as a share of the largest
    logit; `base_logits_error`: the baseline's. `tokens_same` of `tokens` greedy tokens are the baseline's, counted up
    to the first that is not. `wrong_choices`: tokens that do not follow from the engine's own logits. `ok`: the
    judgement of measure/experiment.py.
    """

    logits_error: float
    base_logits_error: float
    tokens_same: int
    tokens: int
    wrong_choices: int
    ok: bool

    def __str__(self) -> str:
        text = (
            f"logits off the reference's by {self.logits_error:.1e} of the largest "
            f"(the baseline's by {self.base_logits_error:.1e}); "
            f"{self.tokens_same} of {self.tokens} greedy tokens the baseline's"
        )
        if self.wrong_choices:
            text += f"; {self.wrong_choices} tokens do not follow from the logits"
        return text


def begin(path: Path, setup: Setup) -> int:
    """Write down an experiment that is about to run; its number. Raises LabError as `opened` does."""
    s = setup
    with opened(path) as db:
        cursor = db.execute(
            "INSERT INTO experiments (state, started, title, hypothesis, predicted, baseline, phase, model,"
            " environment, position, tokens) VALUES ('unfinished', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                _now(), s.title, s.hypothesis, s.predicted, s.baseline, s.phase, s.model,
                json.dumps(dict(s.environment)), s.position, s.tokens,
            ),
        )  # fmt: skip
        number = cursor.lastrowid
        assert number is not None
        db.executemany(
            "INSERT INTO kernels (experiment, op, name, threads, rows_per_block, shared_bytes, source, base_name,"
            " base_source, grid, cooperative) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    number, k.op, k.name, k.threads, k.rows_per_block, k.shared_bytes, k.source, k.base_name,
                    k.base_source, k.grid, k.cooperative,
                )
                for k in s.kernels
            ],
        )  # fmt: skip
    return number


def finish(path: Path, number: int, checks: Checks, comparison: Comparison | None) -> None:
    """Complete an experiment: with its samples, or without any where the checks say that it computes wrongly.

    Raises LabError as `opened` does, and where the ledger has no such experiment in flight.
    """
    c = comparison
    facts = (
        ("wrong", "revert", None, None, None)
        if c is None
        else ("measured", c.verdict, c.speedup, c.low, c.high)
    )
    with opened(path) as db:
        done = db.execute(
            "UPDATE experiments SET ended = ?, checks = ?, state = ?, verdict = ?, speedup = ?, low = ?, high = ?"
            " WHERE id = ? AND state = 'unfinished'",
            (_now(), json.dumps(asdict(checks)), *facts, number),
        )
        _demand(done, path, number)
        if c is not None:
            pairs = zip(c.base_ms, c.change_ms, strict=True)
            db.executemany(
                "INSERT INTO samples VALUES (?, ?, ?, ?)",
                [(number, i, float(base), float(change)) for i, (base, change) in enumerate(pairs)],
            )


def fail(path: Path, number: int, error: str) -> None:
    """Complete an experiment that could not be run to its end. Raises LabError as `finish` does."""
    with opened(path) as db:
        done = db.execute(
            "UPDATE experiments SET ended = ?, state = 'failed', error = ? WHERE id = ? AND state = 'unfinished'",
            (_now(), error, number),
        )
        _demand(done, path, number)


def decide(path: Path, number: int, decision: Decision, why: str) -> None:
    """Write down the learner's decision. An earlier one stays in the file, and the last one counts.

    Raises LabError for another word, a reason left out, an experiment without a verdict, and as `opened` does.
    """
    if decision not in ("keep", "revert"):
        raise LabError(f'A decision is "keep" or "revert"; got {decision!r}.')
    if not why.strip():
        raise LabError(
            "A decision needs a reason: say in a sentence what the measurement told you."
        )
    with opened(path) as db:
        row = db.execute("SELECT verdict FROM experiments WHERE id = ?", (number,)).fetchone()
        if row is None or row["verdict"] is None:
            raise LabError(
                f"Experiment {number} in {path} has no verdict to decide on: run it to its end first."
            )
        db.execute(
            "INSERT INTO decisions (experiment, decision, why, decided) VALUES (?, ?, ?, ?)",
            (number, decision, why.strip(), _now()),
        )


def _demand(done: sqlite3.Cursor, path: Path, number: int) -> None:
    if done.rowcount != 1:
        raise LabError(
            f"The ledger {path} has no experiment {number} in flight: was the file moved, or the experiment ended?"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(" ", "seconds").removesuffix("+00:00")
