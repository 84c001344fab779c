"""The magics in a real IPython: a card comes back, kernels are kept, and whatever happens the next cell works."""

from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from sovereign_lab.kernels.registry import OPS, op
from sovereign_lab.measure import mine
from sovereign_lab.measure.trial.card import Card
from sovereign_lab.measure.worker import Worker, WorkerEnded
from sovereign_lab.notebook.card import CardView
from sovereign_lab.notebook.magics import LabMagics, load_ipython_extension

ADD = op("add").variant("elementwise").source
COALESCED = op("gemv_q4_0").variant("coalesced").source


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setattr(mine, "_KEPT", {})
    shell = InteractiveShell()
    yield shell
    shell.history_manager.end_session() if shell.history_manager else None


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("simt") as worker:
        yield worker


@pytest.fixture
def lab(shell: InteractiveShell, worker: Worker) -> InteractiveShell:
    shell.register_magics(LabMagics(shell, worker))
    return shell


def run(shell: InteractiveShell, cell: str) -> Any:
    done: ExecutionResult = shell.run_cell(cell)
    if done.error_in_exec is not None:
        raise done.error_in_exec
    return done.result


def test_load_ext_registers_the_magics(shell: InteractiveShell) -> None:
    load_ipython_extension(shell)
    for kind, name in (("cell", "kernel"), ("line", "kernels"), ("line", "kernel_source")):
        assert name in shell.magics_manager.magics[kind]


def test_a_right_kernel_is_kept(lab: InteractiveShell) -> None:
    view = run(lab, f"%%kernel add --as again\n{ADD}")
    assert isinstance(view, CardView)
    assert view.card.good
    assert view.note == "Kept as add:again."
    assert mine.find_kept("add", "again").source.strip() == ADD.strip()
    assert ["add", "again", "", "yours", "256 threads", "edited from elementwise"] in run(
        lab, "%kernels"
    ).rows


def test_a_wrong_kernel_is_not_kept_and_the_next_cell_works(lab: InteractiveShell) -> None:
    broken = "x[i] += 2 * y[i]"
    assert "x[i] += y[i]" in ADD
    view = run(lab, f"%%kernel add\n{ADD.replace('x[i] += y[i]', broken)}")
    assert view.card.verdict.startswith("It is wrong: at 4 of 4 shapes; n = 1: `x` is wrong")
    assert view.note == ""
    assert mine.kept() == ()
    assert run(lab, "6 * 7") == 42


def test_errors_are_told_by_the_lines_of_the_cell(lab: InteractiveShell) -> None:
    cell = f"%%kernel add\n{ADD.replace('y[i];', 'z[i];')}"
    view = run(lab, cell)
    remark = view.card.stage("compiles").remarks[0]
    assert cell.splitlines()[remark.line - 1].strip() == remark.code
    assert "z[i]" in remark.code


def test_options_reach_the_launch(lab: InteractiveShell) -> None:
    view = run(lab, f"%%kernel add --threads 64 --rows-per-block 64 --shared 128\n{ADD}")
    assert (
        view.card.launch
        == "64 threads a block, 64 rows a block, 128 bytes of dynamic shared memory"
    )
    assert view.card.good
    fixed = run(lab, f"%%kernel add --grid 1\n{ADD}")
    assert "is not written" in fixed.card.verdict or "is wrong" in fixed.card.verdict


def test_counts_are_shown_where_asked_for(lab: InteractiveShell) -> None:
    view = run(lab, f"%%kernel gemv_q4_0 --from 1 --inspect --model synthetic:tiny\n{COALESCED}")
    assert view.card.edit.like == "warp_per_row"
    assert "sectors a load request" in repr(view)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nothing", "There is no op 'nothing'"),
        ("add --from float5", "no variant 'float5'"),
        ("add --threads many", "invalid int value: 'many'"),
        ("add --fast", "unrecognized arguments: --fast"),
        ("add --phase 99", "no phase '99'"),
        ("add --time-limit 0", "--time-limit is more than 0 seconds"),
        ("add --grid 0", "grid is 1 or more"),
        ("add --time --model nothing", "nothing"),
        ("", "required: op"),
    ],
)
def test_a_wrong_line_is_one_sentence(lab: InteractiveShell, line: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        run(lab, f"%%kernel {line}\n{ADD}")
    assert said in str(raised.value)


@pytest.mark.parametrize("doing", ["Loading the model", "Opening the device", "A call"])
def test_a_worker_that_ends_elsewhere_says_nothing_about_the_kernel(
    lab: InteractiveShell, doing: str
) -> None:
    worker = Ends("time limit", 1)
    worker.doing = doing
    lab.register_magics(LabMagics(lab, worker))
    with pytest.raises(UsageError, match=f"{doing} was stopped"):
        run(lab, f"%%kernel add\n{ADD}")


def test_a_hang_ends_and_says_where(lab: InteractiveShell) -> None:
    hang = COALESCED.replace("float sum = 0;", "float sum = 0; if (rows == 1) while (lane == 3) {}")
    cell = f"%%kernel gemv_q4_0 --from coalesced --time-limit 10\n{hang}"
    view = run(lab, cell)
    remark = view.card.stage("safe").remarks[0]
    assert view.card.stage("safe").answer == "no"
    assert "while (lane == 3)" in cell.splitlines()[remark.line - 1]
    assert run(lab, f"%%kernel add\n{ADD}").card.good


def test_documents_itself(lab: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    run(lab, "%%kernel?")
    out = capsys.readouterr().out
    for flag in ("--from VARIANT", "--as NAME", "--threads N", "--engine", "--time-limit S"):
        assert flag in out


def test_kernels_lists_every_variant(lab: InteractiveShell) -> None:
    names = [tuple(row[:2]) for row in run(lab, "%kernels").rows]
    assert names == [(o.name, v) for o in OPS.values() for v in o.variants]
    one = run(lab, "%kernels attention").rows
    assert {row[0] for row in one} == {"attention"}
    assert [row[1] for row in one if row[3] == "phase 8b"] == ["online_softmax"]
    with pytest.raises(UsageError, match="no op 'nothing'"):
        run(lab, "%kernels nothing")


def test_kernel_source_opens_a_cell_that_runs(lab: InteractiveShell) -> None:
    run(lab, "%kernel_source add")
    opened = lab.rl_next_input
    assert opened == f"%%kernel add --from elementwise\n{ADD}"
    assert run(lab, opened).card.good
    run(lab, "%kernel_source gemv_q4_0 3")
    assert lab.rl_next_input.startswith("%%kernel gemv_q4_0 --from float4\n")
    for wrong in ("", "add elementwise more", "add nothing", "nothing"):
        with pytest.raises(UsageError):
            run(lab, f"%kernel_source {wrong}")


def test_kernel_source_of_a_kept_kernel_has_its_launch(lab: InteractiveShell) -> None:
    mine.keep(mine.edit("add", "text", name="again", threads=64, cooperative=True))
    run(lab, "%kernel_source add again")
    assert (
        lab.rl_next_input
        == "%%kernel add --from elementwise --as again --threads 64 --cooperative\ntext"
    )


class Ends:
    """A worker that ends on the first calls, then answers with the given card, or ends again."""

    def __init__(self, reason: Any, ends: int, card: Card | None = None) -> None:
        self.reason, self.ends, self.card = reason, ends, card
        self.doing = "Kernel mine <<<1, 256>>>"
        self.calls: list[dict[str, Any]] = []

    def start(self) -> None: ...

    def call(
        self, function: Any, *args: Any, time_limit: float | None = None, **kwargs: Any
    ) -> Any:
        self.calls.append({**kwargs, "time_limit": time_limit})
        if len(self.calls) <= self.ends:
            raise WorkerEnded(self.reason, self.doing, f"{self.doing} was stopped.")
        return self.card


def test_after_a_crash_the_sanitizer_looks_at_every_shape(lab: InteractiveShell) -> None:
    wrong = run(lab, f"%%kernel add\n{ADD.replace('if (i < n)', '')}").card
    assert wrong.verdict.startswith("It is not safe: out of bounds in line")
    worker = Ends("crash", 1, wrong)
    lab.register_magics(LabMagics(lab, worker))
    view = run(lab, f"%%kernel add --time-limit 3\n{ADD}")
    assert view.card == wrong
    assert [c.get("thorough", False) for c in worker.calls] == [False, True]
    assert worker.calls[0]["time_limit"] == worker.calls[0]["seconds"] == 3


@pytest.mark.parametrize(
    ("reason", "calls"), [("time limit", 2), ("memory", 1), ("crash", 2), ("gpu", 2)]
)
def test_a_worker_that_ends_is_a_card(lab: InteractiveShell, reason: str, calls: int) -> None:
    worker = Ends(reason, 2)
    lab.register_magics(LabMagics(lab, worker))
    view = run(lab, f"%%kernel add\n{ADD}")
    assert len(worker.calls) == calls
    assert view.card.verdict == "It is not safe: Kernel mine <<<1, 256>>> was stopped."
    assert mine.kept() == ()
    assert run(lab, "6 * 7") == 42
