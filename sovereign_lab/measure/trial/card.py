"""What a trial finds out, as plain facts: the answers to four questions, counts and times."""

from dataclasses import dataclass
from typing import Literal

from sovereign_lab.measure.mine import Edit
from sovereign_lab.measure.trial.times import Alone, InEngine

Answer = Literal["yes", "no", "unknown"]
QUESTIONS = ("compiles", "safe", "right", "faster")


@dataclass(frozen=True)
class Remark:
    """A sentence, and the line of the source that it is about: 0 and "" where no single line is."""

    says: str
    line: int = 0
    code: str = ""


@dataclass(frozen=True)
class Stage:
    """The answer to one of QUESTIONS; "unknown" where nobody asked, or another answer came first."""

    question: str
    answer: Answer
    says: str
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Count:
    """One figure of the memory trace, of parent and edit."""

    what: str
    parent: float
    mine: float


@dataclass(frozen=True)
class Card:
    """All that a trial found. `launch` in words; `counts`, `alone` and `engine` where they were asked for.

    `device` is "" where the trial's process ended.
    """

    edit: Edit
    device: str
    launch: str
    stages: tuple[Stage, ...]
    counts: tuple[Count, ...] = ()
    counted: str = ""  # what the counts are of
    alone: Alone | None = None
    engine: InEngine | None = None

    def stage(self, question: str) -> Stage:
        """The stage that answers a question."""
        return next(s for s in self.stages if s.question == question)

    @property
    def good(self) -> bool:
        """Whether it is known to compile and to be right, and not known to be unsafe."""
        answers = {s.question: s.answer for s in self.stages}
        return answers["compiles"] == answers["right"] == "yes" and answers["safe"] != "no"

    @property
    def verdict(self) -> str:
        """The whole card in a sentence."""
        for question, words in (
            ("compiles", "It does not compile"),
            ("safe", "It is not safe"),
            ("right", "It is wrong"),
        ):
            stage = self.stage(question)
            if stage.answer == "no":
                return f"{words}: {stage.says}"
        if not self.good:
            return self.stage("right").says
        safe = "safe" if self.stage("safe").answer == "yes" else "not checked for safety"
        return f"It compiles, it is right, it is {safe}. Faster? {self.stage('faster').says}"


def geometry_words(made: Edit) -> str:
    """How it is launched, in words."""
    v = made.variant()
    words = [f"{v.threads} threads a block"]
    if v.blocks is not None:
        words.append(f"a grid of {v.blocks}")
    elif v.tiles is not None:
        words.append("a block a tile")
    elif v.rows_per_block:
        words.append(f"{v.rows_per_block} rows a block")
    else:
        words.append("one block")
    if made.shared_bytes is not None:
        words.append(f"{made.shared_bytes:,} bytes of dynamic shared memory")
    return ", ".join(words + (["cooperative"] if v.cooperative else []))
