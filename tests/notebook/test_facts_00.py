"""What the tour says in its prose is what the ladder and the recorded run say."""

from sovereign_lab.engine import PHASES
from sovereign_lab.measure.roofline import find_gpu, floor, token_bytes
from sovereign_lab.notebook import scoreboard
from sovereign_lab.notebook.runs import recorded_ladder
from sovereign_lab.notebook.seed import TINYLLAMA


def test_the_kernel_that_is_shown_is_that_of_phases_5_to_8b() -> None:
    shown = [i for i, p in PHASES.items() if p.plan.get("gemv_q4_0") == "coalesced"]
    assert shown == ["5", "6", "7", "8a", "8b"]


def test_two_phases_are_no_steps_upward() -> None:
    assert {i: p.verdict for i, p in PHASES.items() if p.verdict != "keep" and not p.planned} == {
        "1": "bug",
        "4": "revert",
    }
    assert PHASES["5"].base == "3"


def test_the_recorded_run_drew_its_tokens_and_has_every_timed_phase() -> None:
    run = recorded_ladder()
    assert run.sampling == scoreboard.SAMPLING
    assert list(scoreboard.rates(run)) == PHASES.measured()


def test_phase_8b_reached_8_percent_of_its_ceiling() -> None:
    gpu, rung = find_gpu("H200"), recorded_ladder().rung("8b", 16)
    assert gpu is not None and rung is not None
    reached = floor(token_bytes(TINYLLAMA).at(16), gpu).ms / rung.ms_per_forward
    assert f"{reached:.0%}" == "8%"
