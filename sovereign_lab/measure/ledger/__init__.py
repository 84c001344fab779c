"""The ledger: every experiment of a learner, with what was predicted, measured, proposed and decided, and why."""

import csv
import io
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from statistics import median

from sovereign_lab.errors import LabError
from sovereign_lab.measure.compare import Verdict
from sovereign_lab.measure.ledger.file import ledger_path, opened, sentence
from sovereign_lab.measure.ledger.records import (
    Checks,
    Decision,
    KernelChange,
    Setup,
    State,
    decide,
)

HEAD = (
    "#", "experiment", "change", "on", "tok/s", "predicted", "measured", "verdict", "decision"
)  # fmt: skip
CSV_HEAD = (
    "id", "state", "started", "ended", "title", "hypothesis", "baseline", "change", "model", "device",
    "position", "tokens", "rounds", "tokens_per_second_before", "tokens_per_second_after", "predicted",
    "speedup", "low", "high", "verdict", "decision", "why",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One experiment of a ledger, everything that is known of it.

    `state`: "unfinished" (still running, or its process was killed), "measured", "wrong" (the checks failed, so
    nothing was timed, and the proposal is to revert) or "failed" (`error` says why). Dates are UTC. `base_ms` and
    `change_ms`: milliseconds a forward pass, one pair a round. `speedup`, `low`, `high`: see Comparison.
    `decision` and `why` are the learner's, the last ones.
    """

    path: Path
    id: int
    state: State
    started: str
    ended: str | None
    setup: Setup
    checks: Checks | None
    base_ms: tuple[float, ...]
    change_ms: tuple[float, ...]
    speedup: float | None
    low: float | None
    high: float | None
    verdict: Verdict | None
    error: str | None
    decision: Decision | None
    why: str | None

    @property
    def tokens_per_second(self) -> tuple[float, float] | None:
        """Before and after: 1,000 over the median of the samples. None where nothing was measured."""
        return (1e3 / median(self.base_ms), 1e3 / median(self.change_ms)) if self.base_ms else None

    @property
    def measured(self) -> str:
        """The speed-up with its 95 % interval, "" where nothing was measured."""
        if self.speedup is None:
            return ""
        return f"{self.speedup:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def against_prediction(self) -> str:
        """Where the prediction lies: inside the measured interval, or on which side. "" where there is none."""
        if self.low is None or self.high is None:
            return ""
        if self.setup.predicted > self.high:
            return "less than predicted"
        return "more than predicted" if self.setup.predicted < self.low else "as predicted"

    @property
    def proposal(self) -> str:
        """The verdict, and where there is none, what happened."""
        if self.state == "wrong":
            return "revert: wrong results"
        return self.verdict or self.state

    def decide(self, decision: Decision, why: str) -> "Entry":
        """Write down the learner's own decision, and return the entry with it. See `decide`."""
        decide(self.path, self.id, decision, why)
        return read_entry(self.path, self.id)

    def kernel(self, op: str) -> KernelChange:
        """The changed kernel of an op. Raises LabError with the ops there are."""
        for kernel in self.setup.kernels:
            if kernel.op == op:
                return kernel
        names = ", ".join(k.op for k in self.setup.kernels) or "none"
        raise LabError(f"Experiment {self.id} changed no op {op!r}; it changed {names}.")

    def row(self) -> tuple[str, ...]:
        """The cells of the ledger's table, under HEAD."""
        rates = self.tokens_per_second
        return (
            str(self.id),
            self.setup.title,
            f"{self.setup.change} (from phase {self.setup.baseline})",
            f"{self.setup.model}, {self.setup.environment.get('device', '')}",
            "" if rates is None else f"{rate(rates[0])} -> {rate(rates[1])}",
            f"{self.setup.predicted:g}",
            self.measured,
            self.proposal,
            "" if self.decision is None else f"{self.decision}: {self.why}",
        )

    def facts(self) -> list[tuple[str, str]]:
        """What there is to say about it, name and text."""
        s, rates = self.setup, self.tokens_per_second
        found = [
            ("hypothesis", s.hypothesis),
            ("change", f"{s.change}, against phase {s.baseline}"),
            ("on", f"{s.model}, {s.environment.get('device', '')}, {self.started}"),
            ("predicted", f"{s.predicted:g} times as fast"),
        ]
        if self.checks is not None:
            found.append(("checks", str(self.checks)))
        if rates is not None:
            where = f"{len(self.base_ms)} rounds of {s.tokens} tokens from position {s.position} on"
            found.append(
                ("measured", f"{self.measured} times as fast, 95 %; {self.against_prediction}")
            )
            found.append(("tok/s", f"{rate(rates[0])} -> {rate(rates[1])}, {where}"))
            if "times" in s.environment:
                found.append(("times", s.environment["times"]))
        found.append(("verdict", self.proposal))
        if self.error is not None:
            found.append(("error", self.error))
        if self.verdict is not None:
            hint = 'not yet: .decide("keep" or "revert", why)'
            found.append(("decision", f"{self.decision}: {self.why}" if self.decision else hint))
        return found

    def __repr__(self) -> str:
        lines = [f"Experiment {self.id}: {self.setup.title}"]
        return "\n".join([*lines, *(f"  {name + ':':<12}{text}" for name, text in self.facts())])

    def _repr_html_(self) -> str:
        facts = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(text)}</td></tr>"
            for name, text in self.facts()
        )
        parts = [
            f"<p><b>Experiment {self.id}: {escape(self.setup.title)}</b></p><table>{facts}</table>"
        ]
        for kernel in self.setup.kernels:
            parts.append(_folded(f"{kernel.op}: {kernel.name}, {kernel.launch}", kernel.source))
            if kernel.base_source:
                parts.append(_folded(f"{kernel.op}: what changed", kernel.diff()))
        if self.base_ms:
            pairs = zip(self.base_ms, self.change_ms, strict=True)
            lines = "\n".join(f"{b:10.4f} {c:10.4f} {b / c:8.4f}" for b, c in pairs)
            parts.append(
                _folded("samples: ms a forward pass, baseline, change, and their ratio", lines)
            )
        known = "\n".join(f"{name}: {value}" for name, value in self.setup.environment.items())
        return "".join([*parts, _folded("environment", known)])


@dataclass(frozen=True)
class Ledger:
    """The learner's table, in the form of the seed's: an experiment a line, in the order in which they began."""

    path: Path
    entries: tuple[Entry, ...]

    def entry(self, number: int) -> Entry:
        """The experiment of that number. Raises LabError where there is none."""
        for entry in self.entries:
            if entry.id == number:
                return entry
        numbers = f"its numbers are 1 to {self.entries[-1].id}" if self.entries else "it is empty"
        raise LabError(f"The ledger {self.path} has no experiment {number}; {numbers}.")

    def markdown(self) -> str:
        """The table as Markdown."""

        def line(cells: Sequence[str]) -> str:
            inner = " | ".join(
                _one_line(c).replace("\\", "\\\\").replace("|", "\\|") for c in cells
            )
            return f"| {inner} |"

        rule = "|" + " --- |" * len(HEAD)
        return "\n".join([line(HEAD), rule, *(line(e.row()) for e in self.entries)]) + "\n"

    def csv(self) -> str:
        """One line an experiment, a figure a cell, under CSV_HEAD."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(CSV_HEAD)
        for e in self.entries:
            s, (before, after) = e.setup, e.tokens_per_second or (None, None)
            writer.writerow(
                [
                    e.id, e.state, e.started, e.ended, s.title, s.hypothesis, s.baseline, s.change, s.model,
                    s.environment.get("device"), s.position, s.tokens, len(e.base_ms), before, after, s.predicted,
                    e.speedup, e.low, e.high, e.verdict, e.decision, e.why,
                ]
            )  # fmt: skip
        return out.getvalue()

    def html(self) -> str:
        """A page with the table, in the reader's light or dark colours."""
        return (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Sovereign Lab: ledger</title>"
            "<meta name='color-scheme' content='light dark'>"
            "<style>body { font-family: sans-serif } td, th { padding: 0.3em 0.6em; vertical-align: top }</style>"
            f"</head><body><h1>Ledger</h1>{self._repr_html_()}</body></html>\n"
        )

    def __repr__(self) -> str:
        if not self.entries:
            return f"The ledger {self.path} has no experiments yet."
        lines = [HEAD, *(tuple(map(_one_line, e.row())) for e in self.entries)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        if not self.entries:
            return f"<p>{escape(repr(self))}</p>"

        def line(cells: Sequence[str], tag: str) -> str:
            inner = "".join(f"<{tag} style='text-align:left'>{escape(c)}</{tag}>" for c in cells)
            return f"<tr>{inner}</tr>"

        body = "".join(line(e.row(), "td") for e in self.entries)
        return f"<table><thead>{line(HEAD, 'th')}</thead><tbody>{body}</tbody></table>"


def rate(value: float) -> str:
    """Tokens a second as text: one decimal from 10 on, two below."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


# ---- reading ----


def ledger(path: str | Path | None = None) -> Ledger:
    """The learner's experiments, from `path` or the project's ledger (see `ledger_path`), where it exists.

    Raises LabError as `opened` does.
    """
    place = ledger_path(path)
    if not place.exists():
        return Ledger(place, ())
    with opened(place, write=False) as db:
        rows = db.execute("SELECT * FROM experiments ORDER BY id").fetchall()
        try:
            return Ledger(place, tuple(_entry(db, place, row) for row in rows))
        except (ValueError, TypeError, LookupError) as error:
            # SQLite sees damage to its own structures alone, and none within a text or a number.
            raise LabError(sentence(place, error)) from error


def read_entry(path: Path, number: int) -> Entry:
    """One experiment. Raises LabError where there is none, and as `opened` does."""
    return ledger(path).entry(number)


def _entry(db: sqlite3.Connection, path: Path, row: sqlite3.Row) -> Entry:
    key = (row["id"],)
    if any(isinstance(value, bytes) for value in row):
        raise ValueError("bytes in the place of a text")
    kernels = db.execute("SELECT * FROM kernels WHERE experiment = ? ORDER BY rowid", key)
    samples = db.execute(
        "SELECT base_ms, change_ms FROM samples WHERE experiment = ? ORDER BY round", key
    ).fetchall()
    decision = db.execute(
        "SELECT decision, why FROM decisions WHERE experiment = ? ORDER BY id DESC LIMIT 1", key
    ).fetchone()
    setup = Setup(
        title=row["title"],
        hypothesis=row["hypothesis"],
        predicted=float(row["predicted"]),
        baseline=row["baseline"],
        phase=row["phase"],
        model=row["model"],
        environment=json.loads(row["environment"]),
        position=row["position"],
        tokens=row["tokens"],
        kernels=tuple(_kernel(k) for k in kernels),
    )
    return Entry(
        path=path,
        id=row["id"],
        state=row["state"],
        started=row["started"],
        ended=row["ended"],
        setup=setup,
        checks=None if row["checks"] is None else Checks(**json.loads(row["checks"])),
        base_ms=tuple(float(s["base_ms"]) for s in samples),
        change_ms=tuple(float(s["change_ms"]) for s in samples),
        speedup=_number(row["speedup"]),
        low=_number(row["low"]),
        high=_number(row["high"]),
        verdict=row["verdict"],
        error=row["error"],
        decision=decision and decision["decision"],
        why=decision and decision["why"],
    )


def _kernel(row: sqlite3.Row) -> KernelChange:
    facts = {field.name: row[field.name] for field in fields(KernelChange)}
    return KernelChange(**facts | {"cooperative": bool(row["cooperative"])})


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
