"""The open bench's challenges: starters are not solved, each grade is reached, and wrong kernels hear what is wrong."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sovereign_lab.kernels.registry import op
from sovereign_lab.measure import mine
from sovereign_lab.measure.compare import Comparison
from sovereign_lab.measure.mine import Edit, edit, keep
from sovereign_lab.measure.trial.card import Card, Stage
from sovereign_lab.measure.trial.times import Alone
from sovereign_lab.measure.worker import Worker
from sovereign_lab.notebook.challenges import CHALLENGES
from sovereign_lab.notebook.exercises import check, solution, solution_text
from sovereign_lab.notebook.exercises import edit as changed
from sovereign_lab.notebook.open_bench import Judged, counts, hand_in
from sovereign_lab.notebook.open_bench_times import gold

Changes = dict[str, str]

every_challenge = pytest.mark.parametrize("which", CHALLENGES)


def parent(which: str) -> str:
    challenge = CHALLENGES[which]
    return op(challenge.op).variant(challenge.like).source


def verdict(which: str, answer: Any, capsys: pytest.CaptureFixture[str]) -> str:
    check(which, answer)
    return capsys.readouterr().out.strip()


@every_challenge
def test_starter_is_not_solved(
    which: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = nbformat.read(repository / "notebooks/14_the_open_bench.ipynb", as_version=4).cells
    cell = next(c for c in cells if f"exercise-{which}" in c.metadata.get("tags", []))
    exec(cell.source, {"check": check, "op": op})
    assert capsys.readouterr().out == f"Exercise {which}: not solved yet.\n"
    assert verdict(which, None, capsys) == f"Exercise {which}: not solved yet."


@every_challenge
def test_solution_reaches_gold(which: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(solution_text(which), {})
    said = capsys.readouterr().out
    assert said.startswith(f"Exercise {which}: solved. Gold: "), said
    assert f"makes {CHALLENGES[which].parent:,}." in said
    assert solution_text(which) in solution(which).data


BRONZE: dict[str, Changes] = {
    "14.1": {
        "float squares = 0;": "float squares = 0, kept[8];",
        "for (int i = threadIdx.x; i < dim; i += blockDim.x) squares += x[i] * x[i];": """\
for (int k = 0; k < 8; k++) {
    int i = threadIdx.x + k * blockDim.x;
    kept[k] = i < dim ? x[i] : 0;
    squares += kept[k] * kept[k];
  }
  for (int i = threadIdx.x + 8 * blockDim.x; i < dim; i += blockDim.x) squares += x[i] * x[i];""",
        "for (int i = threadIdx.x; i < dim; i += blockDim.x) y[i] = x[i] * scale * weight[i];": """\
for (int k = 0; k < 8; k++) {
    int i = threadIdx.x + k * blockDim.x;
    if (i < dim) y[i] = kept[k] * scale * weight[i];
  }
  for (int i = threadIdx.x + 8 * blockDim.x; i < dim; i += blockDim.x) y[i] = x[i] * scale * weight[i];""",
    },
    "14.2": {"  __syncthreads();\n": "  __syncthreads();\n  if (warp > 0) return;\n"},
    "14.3": {
        "float* p = q + head * head_dim + 2 * i;": "float2* p = (float2*)(q + head * head_dim + 2 * i);",
        "    float a = p[0], b = p[1];\n": "    float2 pair = *p;\n    float a = pair.x, b = pair.y;\n",
        "    p[0] = a * cosine - b * sine;\n    p[1] = a * sine + b * cosine;\n": (
            "    *p = make_float2(a * cosine - b * sine, a * sine + b * cosine);\n"
        ),
    },
    "14.4": {
        "int d = lane + 32 * i;": "int d = 2 * lane + 64 * (i / 2) + i % 2;",
        "for (int i = 0; i < PER_LANE; i++)\n      if (lane + 32 * i < head_dim) "
        "score += query[i] * to_float(key[lane + 32 * i]);": """\
for (int i = 0; i < PER_LANE; i += 2)
      if (2 * lane + 32 * i < head_dim) {
        half2 k = *(const half2*)(key + 2 * lane + 32 * i);
        score += query[i] * __low2float(k) + query[i + 1] * __high2float(k);
      }""",
        "for (int i = 0; i < PER_LANE; i++)\n      if (lane + 32 * i < head_dim) "
        "total[i] = total[i] * correction + weight * to_float(value[lane + 32 * i]);": """\
for (int i = 0; i < PER_LANE; i += 2)
      if (2 * lane + 32 * i < head_dim) {
        half2 v = *(const half2*)(value + 2 * lane + 32 * i);
        total[i] = total[i] * correction + weight * __low2float(v);
        total[i + 1] = total[i + 1] * correction + weight * __high2float(v);
      }""",
        "warp_out[warp][lane + 32 * i] = total[i];": (
            "warp_out[warp][2 * lane + 64 * (i / 2) + i % 2] = total[i];"
        ),
    },
    "14.5": {
        "const unsigned char* bytes = blocks[b].nibbles + first_byte;": (
            "const unsigned short* pairs = (const unsigned short*)(blocks[b].nibbles + first_byte);\n"
            "    int low = pairs[0], high = pairs[1], bytes[4] = {low & 255, low >> 8, high & 255, high >> 8};"
        ),
    },
}


def first_step(which: str) -> Edit:
    challenge = CHALLENGES[which]
    source = changed(parent(which), BRONZE[which])
    return edit(challenge.op, source, challenge.like, name="first_step")


@every_challenge
def test_a_first_step_reaches_bronze_within_the_limits(which: str) -> None:
    challenge = CHALLENGES[which]
    made = dict(counts(challenge, first_step(which)))
    assert challenge.grade(made[challenge.measure.name]) == "bronze"
    assert all(made[measure.name] <= most for measure, most in challenge.limits)


def test_bronze_solves_and_hears_of_silver(capsys: pytest.CaptureFixture[str]) -> None:
    said = verdict("14.2", first_step("14.2"), capsys)
    assert said == (
        "Exercise 14.2: solved. Bronze: 428 shuffles, votes, barriers and shared-memory wavefronts of all warps, where "
        f"block makes 800. Silver takes 330 at most: {CHALLENGES['14.2'].ways[1]}."
    )


# By challenge: what is changed of its gold kernel, and what the check says.
WRONG: list[tuple[str, Changes, str]] = [
    # right up to what the registers hold
    ("14.1", {"i = behind; i < fours": "i = behind; i < 0"}, r"at dim = 5000.*`y` is not written"),
    # of equals, the one that a thread with a smaller number found
    ("14.2", {" || (other == value && indices[t] < indices[at])": ""}, r"vocab = 2100: `best` is wrong"),
    # the position's offset added twice: the seed's bug
    ("14.3", {"+ from;  // the position's": "+ (size_t)pos * kv_heads * head_dim + from;  // the position's"},
     r"It is (not safe: out of bounds|wrong)"),
    # reads behind the text
    ("14.4", {"inside && t < length": "inside", "if (t < length) {": "{"}, r"It is (not safe|wrong)"),
    # reads behind the last row
    ("14.5", {"if (at + 16 <= end)": "if (true)"}, r"It is not safe: out of bounds"),
]  # fmt: skip


@pytest.mark.parametrize(("which", "changes", "said"), WRONG)
def test_wrong_kernel_hears_what_is_wrong(
    which: str, changes: Changes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = gold(CHALLENGES[which])
    answer = edit(
        made.op,
        changed(made.source, changes),
        made.like,
        name="wrong",
        rows_per_block=made.rows_per_block,
    )
    out = verdict(which, answer, capsys)
    assert out.startswith(f"Exercise {which}: not solved yet. "), out
    assert re.search(said, out), out


# Answers that nothing needs to be compiled for.
@pytest.mark.parametrize(
    ("which", "answer", "said"),
    [
        ("14.1", edit("rmsnorm", parent("14.1") + "// mine", threads=32), "one block of 256"),
        ("14.2", edit("argmax", parent("14.2") + "// mine", grid=4), "asks for 4 blocks"),
        ("14.2", parent("14.2").replace("int index =", "long index ="), "shuffle moves 32 bits"),
        ("14.3", edit("add", op("add").variant("elementwise").source), "is about rope_kv"),
        ("14.4", "no_such_kernel", "No kernel of yours for attention is called 'no_such_kernel'"),
        ("14.5", 42, "An answer is a kernel's source, .* got int"),
    ],
)
def test_what_cannot_be_graded_is_told(
    which: str, answer: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = verdict(which, answer, capsys)
    assert out.startswith(f"Exercise {which}: not solved yet. ")
    assert re.search(said, out), out


# The gold kernels with another launch: nothing is compiled anew.
@pytest.mark.parametrize(
    ("which", "launch", "said"),
    [
        ("14.3", {"rows_per_block": 1024}, "It is wrong: .* is not written|It is wrong: .*`q` is wrong"),
        ("14.4", {"rows_per_block": 2}, "It is wrong: .*`out` is not written"),
        ("14.5", {"rows_per_block": 8}, "It is wrong: .*`y` is not written"),
        ("14.5", {"threads": 256, "rows_per_block": 8}, "It is (not safe|wrong)"),
    ],
)  # fmt: skip
def test_a_launch_that_does_not_fit_is_told(
    which: str, launch: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = gold(CHALLENGES[which])
    out = verdict(which, replace(made, name="gold", **launch), capsys)
    assert out.startswith(f"Exercise {which}: not solved yet. ")
    assert re.search(said, out), out


@pytest.mark.parametrize(
    ("which", "found", "said"),
    [
        ("14.1", (256, 8), "not solved yet. It is right and safe, but makes 256 requests to global memory, where block "
         f"makes 256; bronze takes 192 at most: {CHALLENGES['14.1'].ways[0]}."),
        ("14.1", (48, 16), "not solved yet. It is right and safe, with 48 requests to global memory, but pays for them "
         "with 16 barriers, each counted for every warp; at most 8 are allowed."),
        ("14.4", (64, 40_000), "not solved yet. It is right and safe, with 64 load requests, but pays for them with "
         "40,000 sectors of load requests; at most 21,000 are allowed."),
        ("14.5", (1216, 20_000), "solved. Silver: 1,216 load requests, where float4 makes 6,144. Gold takes 512 at "
         f"most: {CHALLENGES['14.5'].ways[2]}."),
    ],
)  # fmt: skip
def test_counts_become_a_grade_or_a_reason(
    which: str,
    found: tuple[int, int],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    challenge = CHALLENGES[which]
    made = edit(challenge.op, parent(which) + "// mine", challenge.like)
    safe = Card(made, "a device", "", (Stage("safe", "yes", ""),))
    names = (challenge.measure.name, challenge.limits[0][0].name)
    judged = Judged(safe, None, tuple(zip(names, found, strict=True)))
    monkeypatch.setattr(Worker, "call", lambda *_: judged)
    assert verdict(which, made, capsys) == f"Exercise {which}: {said}"


def test_a_time_on_a_gpu_is_told_and_changes_no_grade(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = edit("rmsnorm", parent("14.1") + "// mine", "block")
    slower = Comparison("block", "mine", "a GPU", (0.001,) * 5, (0.002,) * 5, 0.5, 0.5, 0.5)
    card = Card(made, "a GPU", "", (Stage("safe", "yes", ""),), alone=Alone(slower, "", 1, None))
    found = (("requests to global memory", 48), ("barriers, each counted for every warp", 8))
    monkeypatch.setattr(Worker, "call", lambda *_: Judged(card, None, found))
    said = verdict("14.1", made, capsys)
    assert "solved. Gold: 48 requests" in said
    assert said.endswith(" On a GPU a launch takes 2 us, the parent's 1 us; times are no part of a grade.")  # fmt: skip


def test_a_kept_kernel_is_an_answer_and_is_handed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mine, "_KEPT", {})
    monkeypatch.setenv("SOVEREIGN_LEDGER", str(tmp_path / "ledger.sqlite3"))
    made: Edit = gold(CHALLENGES["14.3"])
    keep(made)
    assert "solved. Gold: 698" in verdict("14.3", made.name, capsys)
    files = hand_in(tmp_path / "hand-in")
    assert files == ["ledger.md", "ledger.html", "rope_kv-gold_3.cu"]
    first, _, rest = (tmp_path / "hand-in/rope_kv-gold_3.cu").read_text().partition("\n")
    assert first == "// %%kernel rope_kv --from fixed --as gold_3 --rows-per-block 256"
    assert rest == made.source
    assert (tmp_path / "hand-in/ledger.md").read_text().startswith("| # | experiment |")
