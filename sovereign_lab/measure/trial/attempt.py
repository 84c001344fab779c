"""A trial in a worker, and what is said of a kernel that ends it: what a cell's magic and the workbench both do."""

from typing import Any, Protocol

from sovereign_lab.measure.mine import Edit
from sovereign_lab.measure.trial import COMPILER, NOT_THE_KERNEL, ended_card, trial
from sovereign_lab.measure.trial.card import Card
from sovereign_lab.measure.worker import WorkerEnded


class Calls(Protocol):
    """What is needed of a Worker."""

    def call(
        self, function: Any, *args: Any, time_limit: float | None = None, **kwargs: Any
    ) -> Any:
        """See Worker.call."""


def attempt(worker: Calls, made: Edit, options: dict[str, Any], time_limit: float) -> Card:
    """The card; of a kernel that ended the worker, with what the sanitizer says when it looks at every shape.

    `options`: what `trial` takes beyond the op, the source and the parent. Raises LabError as `trial` does, and
    WorkerEnded for an end that the kernel has no part in.
    """
    ask = (trial, made.op, made.source, made.like)
    try:
        card: Card = worker.call(*ask, time_limit=time_limit, **options)
        return card
    except WorkerEnded as ended:
        if ended.reason == "cancelled" or ended.doing.startswith(NOT_THE_KERNEL):
            raise
        first = ended_card(made, str(ended), compiled=COMPILER not in ended.doing)
        if ended.reason == "memory" or COMPILER in ended.doing:
            return first
    try:
        again: Card = worker.call(*ask, time_limit=time_limit, thorough=True, **options)
    except WorkerEnded as ended:
        if ended.reason == "cancelled":
            raise
        return first
    return first if again.good else again
