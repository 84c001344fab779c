"""The open bench: judges an answer to a challenge, and writes down what is to be handed in.

An answer is tried as `%%kernel` tries an edit, in a worker: every odd shape through the sanitizer and against the
reference. Then it must be right at a model's size too, and there its trace is counted.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sovereign_lab.devices.device import Source
from sovereign_lab.devices.signature import without_comments
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.ledger import ledger
from sovereign_lab.measure.memory_trace import trace
from sovereign_lab.measure.mine import Edit, edit, find_kept, kept
from sovereign_lab.measure.trial import TRACE_SECONDS, trial
from sovereign_lab.measure.trial.card import Card
from sovereign_lab.measure.trial.cases import faults, launch_of, shape_words
from sovereign_lab.measure.worker import Worker, child
from sovereign_lab.measure.workload import DEFINES
from sovereign_lab.notebook.challenges import CHALLENGES, GRADES, MODEL, Challenge

NAME = "yours"  # of an answer that is a bare source


class Refused(Exception):
    """What keeps an answer from a grade, in a sentence; without one, the answer is still the starter."""


@dataclass(frozen=True)
class Judged:
    """What a worker found out about an answer: its card, what else is wrong, and its counts by the measure's name."""

    card: Card
    fault: str | None = None
    counts: tuple[tuple[str, int], ...] = ()

    def count(self, name: str) -> int:
        """The count of a measure."""
        return dict(self.counts)[name]


def verdict(challenge_id: str, answer: Any) -> str:
    """The grade of an answer and what keeps it from the next one. Raises Refused for one without a grade.

    `answer`: a kernel's source, launched as the registry's is; the name of a kept `%%kernel`; or an `sl.edit`. Raises
    LabError for what is none of these.
    """
    challenge = CHALLENGES[challenge_id]
    made = _answered(challenge, answer)
    judged = _worker().call(judge, challenge_id, made)
    if judged.fault is not None:
        raise Refused(judged.fault)
    count = judged.count(challenge.measure.name)
    grade = challenge.grade(count)
    _within_limits(challenge, judged)
    found = f"{count:,} {challenge.measure.name}, where {challenge.like} makes {challenge.parent:,}"
    if grade is None:
        raise Refused(
            f"It is right and safe, but makes {found}; bronze takes {challenge.bronze:,} at most: "
            f"{challenge.ways[0]}."
        )
    better = GRADES[GRADES.index(grade) + 1 :]
    rest = "" if not better else (
        f" {better[0].capitalize()} takes {challenge.most(better[0]):,} at most: {challenge.ways[-len(better)]}."
    )  # fmt: skip
    return f"{grade.capitalize()}: {found}.{rest}{_unchecked(judged.card)}{_time(judged.card)}"


def _answered(challenge: Challenge, answer: Any) -> Edit:
    """The answer as an edit. Raises Refused for one that cannot be graded as it stands."""
    if answer is None:
        raise Refused
    if isinstance(answer, str) and "__global__" in answer:
        made = edit(challenge.op, answer, challenge.like, name=NAME)
    elif isinstance(answer, str):
        made = find_kept(challenge.op, answer)
    elif isinstance(answer, Edit):
        made = answer
    else:
        raise LabError(
            "An answer is a kernel's source, the name of one that %%kernel has kept, or an sl.edit; "
            f"got {type(answer).__name__}."
        )
    if made.op != challenge.op:
        raise Refused(f"This is a kernel of {made.op}; the challenge is about {challenge.op}.")
    if any(made.source.strip() == v.source.strip() for v in op(made.op).variants.values()):
        raise Refused
    threads, wanted = made.variant().threads, challenge.one_block_of
    if wanted is not None and (threads != wanted or made.grid not in (None, 1)):
        raise Refused(
            f"It asks for {made.grid or 1} blocks of {threads} threads; so that counts compare, this challenge is for "
            f"one block of {wanted:,}."
        )
    if challenge.refused and re.search(challenge.refused[0], without_comments(made.source)):
        raise Refused(challenge.refused[1])
    return made


@cache
def _worker() -> Worker:
    """One for all checks of this process: it takes a second to start."""
    return Worker()


def judge(challenge_id: str, made: Edit) -> Judged:
    """Try an answer where this is called, by `verdict` in a worker; on a GPU it is timed against its parent as well."""
    challenge, device = CHALLENGES[challenge_id], child.device()
    card = trial(
        made.op, made.source, made.like, name=made.name, threads=made.threads,
        rows_per_block=made.rows_per_block, grid=made.grid, shared_bytes=made.shared_bytes,
        cooperative=made.cooperative, line=made.line, time=device.properties.kind == "cuda",
        model=MODEL, thorough=True, device=device,
    )  # fmt: skip
    if not card.good:
        return Judged(card, " ".join(_words(card)))
    kernel = device.compile(Source(made.text, f"{made.name}.cu", DEFINES))
    for case in [*challenge.more(), challenge.arguments()]:
        child.doing(f"{launch_of(made, case)} at {shape_words(case)}")
        for fault in faults(device, kernel, made, case):
            return Judged(card, f"It is wrong: at {shape_words(case)}: {fault}")
    child.doing(f"Counting the accesses of kernel {made.name}", TRACE_SECONDS)
    return Judged(card, None, counts(challenge, made))


def counts(challenge: Challenge, made: Edit) -> tuple[tuple[str, int], ...]:
    """What a kernel makes of the challenge's measure and of those that are limited, each with its name."""
    args, variant = challenge.arguments(), made.variant()
    traced = trace(
        Source(made.text, f"{made.name}.cu", DEFINES), op(made.op).grid(variant, args), variant.threads, args,
        shared_bytes=variant.shared_bytes(args), cooperative=variant.cooperative,
    )  # fmt: skip
    measures = [challenge.measure, *(measure for measure, _ in challenge.limits)]
    return tuple((m.name, m.of(traced)) for m in measures)


def _words(card: Card) -> Iterator[str]:
    """The card's verdict, and the line that it is about."""
    yield card.verdict
    for stage in card.stages:
        for remark in stage.remarks[:1] if stage.answer == "no" else ():
            if remark.says not in stage.says:
                yield remark.says
            if remark.line:
                yield f"Line {remark.line}: {remark.code}"


def _within_limits(challenge: Challenge, judged: Judged) -> None:
    for measure, most in challenge.limits:
        if judged.count(measure.name) > most:
            raise Refused(
                f"It is right and safe, with {judged.count(challenge.measure.name):,} {challenge.measure.name}, but "
                f"pays for them with {judged.count(measure.name):,} {measure.name}; at most {most:,} are allowed."
            )


def _unchecked(card: Card) -> str:
    safe = card.stage("safe")
    return "" if safe.answer == "yes" else f" Safety was {safe.says}."


def _time(card: Card) -> str:
    if card.alone is None:
        return ""
    parent, mine = card.alone.microseconds
    times = f"{mine:.4g} us, the parent's {parent:.4g} us"
    return f" On {card.device} a launch takes {times}; times are no part of a grade."


# ---- what is handed in ----


def hand_in(folder: str | Path) -> list[str]:
    """Write the learner's ledger as Markdown and HTML, and every kept kernel, into a folder; the names of the files.

    A kernel's first line is the magic that tries it again. Raises LabError for a ledger that cannot be read.
    """
    folder, found = Path(folder), ledger()
    texts = {"ledger.md": found.markdown(), "ledger.html": found.html()}
    for made in kept():
        texts[f"{made.op}-{made.name}.cu"] = f"// %%kernel {made.op} {_flags(made)}\n{made.source}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return list(texts)


def _flags(made: Edit) -> str:
    sizes = {
        "--threads": made.threads,
        "--rows-per-block": made.rows_per_block,
        "--grid": made.grid,
        "--shared": made.shared_bytes,
    }
    given = [f"{flag} {value}" for flag, value in sizes.items() if value is not None]
    return " ".join([f"--from {made.like}", f"--as {made.name}", *given])
