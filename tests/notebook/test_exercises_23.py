"""Exercise 23.1: the starter is not solved, the solution is, and wrong estimates hear what they overlooked."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sovereign_lab.notebook.card_estimate import Card, Load, estimate
from sovereign_lab.notebook.exercises import check, solution, solution_text


def test_starter_is_not_solved_and_solution_is(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = nbformat.read(
        repository / "notebooks/23_the_scoreboard_again.ipynb", as_version=4
    ).cells
    starter = next(c.source for c in cells if "exercise-23.1" in c.metadata.get("tags", []))
    exec(starter, {"check": check})
    assert capsys.readouterr().out == "Exercise 23.1: not solved yet.\n"
    exec(solution_text("23.1"), {})
    assert capsys.readouterr().out.startswith("Exercise 23.1: solved. 6 cards")
    assert solution_text("23.1") in solution("23.1").data


def parts(card: Card, load: Load, context: int) -> tuple[float, float]:
    nbytes = load.layer_bytes + load.head_bytes + context * load.kv_bytes
    return nbytes / (card.bandwidth * 1e3), load.layers * card.layer_us + card.token_us


def seconds(card: Card, load: Load, context: int) -> Any:
    return tuple(us / 1e6 for us in estimate(card, load, context))


def no_head(card: Card, load: Load, context: int) -> Any:
    return estimate(card, Load(load.layers, load.layer_bytes, 0, load.kv_bytes), context)


def no_positions(card: Card, load: Load, context: int) -> Any:
    return estimate(card, load, 0)


def one_layer(card: Card, load: Load, context: int) -> Any:
    return estimate(card, Load(1, load.layer_bytes, load.head_bytes, load.kv_bytes), context)


def twenty_two(card: Card, load: Load, context: int) -> Any:
    return estimate(card, Load(22, load.layer_bytes, load.head_bytes, load.kv_bytes), context)


def always_the_sum(card: Card, load: Load, context: int) -> Any:
    return (sum(parts(card, load, context)),) * 2


def always_the_bytes(card: Card, load: Load, context: int) -> Any:
    read, wait = parts(card, load, context)
    return read, read + wait


def the_shorter(card: Card, load: Load, context: int) -> Any:
    read, wait = parts(card, load, context)
    return min(read, wait), read + wait


def raises(card: Card, load: Load, context: int) -> Any:
    return {"GB/s": card.bandwidth}["bandwidth"]


def test_the_estimate_itself() -> None:
    card, load = Card(500.0, 10.0, 30.0), Load(20, 400_000_000, 90_000_000, 100_000)
    assert estimate(card, load, 100) == (1000.0, 1000.0 + 230.0)
    assert estimate(Card(5000.0, 10.0, 30.0), load, 100) == (230.0, 330.0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (seconds, "bytes only, during the waits: 560.00 us is right, and yours says 0.00. The bytes: layers and head."),
        (no_head, "bytes only, during the waits: 560.00 us is right, and yours says 500.00."),
        (no_positions, "a long context, during the waits: .* Every position before the token"),
        (one_layer, "waits only, during the waits: 245.00 us is right, and yours says 35.00. A wait of each layer"),
        (twenty_two, "another model, .* The number of layers is the load's"),
        (always_the_sum, "a fast memory, during the waits: .* the longer of the two counts"),
        (always_the_bytes, "waits only, during the waits: "),
        (the_shorter, "bytes only, during the waits: 560.00 us is right, and yours says 0.00"),
        (lambda card, load, context: 5, "Two numbers are asked for, during the waits and in turn; yours returns 5."),
        (raises, "bytes only: yours raises KeyError: 'bandwidth'"),
    ],
)  # fmt: skip
def test_wrong_estimates_hear_why(
    answer: Callable[[Card, Load, int], Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check("23.1", answer)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 23.1: not solved yet. ")
    assert re.search(said, out), out
