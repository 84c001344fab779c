"""The ladder: every phase is the last one that was kept, plus what it changes. Read it as the story.

The seed's figures: TinyLlama-1.1B Q4_0 on an RTX 5060 Ti, from the log of SovereignKernel.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Literal

from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import op

Verdict = Literal["keep", "revert", "bug"]


@dataclass(frozen=True)
class Phase:
    """A step of the ladder. `change` maps an op to the variant that computes it from here on.

    A fused op in `change` takes the place of the ops that it fuses (`Op.replaces`); `sample` that of the host's
    sampler. `streams`: on how many WQ, WK and WV run, in this phase alone. `verdict` is the seed's.
    `seed_tokens_per_second` is what the seed measured, None where it gave no figure; `planned`: it
    measured none of it, and the verdict is ours. A phase that mends a bug claims
    no speed: the ladder is not climbed over it.
    """

    id: str
    title: str
    base: str | None
    change: Mapping[str, str]
    seed_tokens_per_second: float | None = None
    verdict: Verdict = "keep"
    streams: int = 1
    planned: bool = False
    plan: Mapping[str, str] = field(
        default_factory=dict
    )  # op -> variant, the base's with the change applied and what is fused away left out

    def __str__(self) -> str:
        return f"phase {self.id}: {self.title}"


class Ladder(dict[str, Phase]):
    """The phases by id, in order; renders as a table in a notebook."""

    def phase(self, phase_id: str) -> Phase:
        """A phase by id; raises LabError with the ids there are."""
        if phase_id not in self:
            raise LabError(f"There is no phase {phase_id!r}; the ladder has {', '.join(self)}.")
        return self[phase_id]

    def add(self, phase: Phase) -> None:
        """Put a phase on the ladder, its plan worked out from its base's."""
        gone = {name for fused in phase.change for name in op(fused).replaces}
        base = self[phase.base].plan if phase.base else {}
        plan = {o: v for o, v in base.items() if o not in gone} | dict(phase.change)
        self[phase.id] = replace(phase, plan=plan)

    def timed(self) -> list[str]:
        """Ids of the phases that are about speed."""
        return [p.id for p in self.values() if p.verdict != "bug"]

    def measured(self) -> list[str]:
        """Ids of those among them that the seed measured as well."""
        return [i for i in self.timed() if not self[i].planned]

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Id, title, base, change and the seed's tok/s, as text."""
        return [
            (
                p.id,
                p.title,
                p.base or "",
                _what_changes(p),
                "" if p.seed_tokens_per_second is None else f"{p.seed_tokens_per_second:.2f}",
            )
            for p in self.values()
        ]

    def __str__(self) -> str:
        return "\n".join(f"{i:>3}  {title:<44} {change}" for i, title, _, change, _ in self.rows())

    def _repr_html_(self) -> str:
        head = ("phase", "title", "from", "change", "seed, tok/s (RTX 5060 Ti)")
        lines = [head, *self.rows()]
        cells = [
            "".join(f"<{tag} style='text-align:left'>{escape(cell)}</{tag}>" for cell in line)
            for line, tag in zip(lines, ["th"] + ["td"] * (len(lines) - 1), strict=True)
        ]
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def _what_changes(phase: Phase) -> str:
    if phase.base is None:
        return "all ops"
    if phase.streams > 1:
        return f"WQ, WK and WV on {phase.streams} streams"
    return ", ".join(f"{op}: {variant}" for op, variant in phase.change.items())


PHASES = Ladder()

PHASES.add(
    Phase(
        "0",
        "the first working GPU path",
        base=None,
        change={
            "embedding": "copy_row",
            "rmsnorm": "block",
            "gemv_q4_0": "block_per_row",
            "rope_kv": "fixed",
            "attention": "three_pass",
            "swiglu": "elementwise",
            "add": "elementwise",
            "logits": "thread_per_row",
            "argmax": "block",
            "advance": "single_thread",
        },
        seed_tokens_per_second=53.67,
    )
)
# The seed's phase 0 wrote keys to the wrong place. Here phase 0 has the mended kernel already, since a ladder is
# climbed with the same text on every step; the broken one runs in chapter 03 alone.
PHASES.add(
    Phase(
        "1",
        "the KV cache's offset added once",
        base="0",
        change={"rope_kv": "fixed"},
        verdict="bug",
    )
)
# The seed dropped unlikely tokens before its sort on the CPU; here the GPU draws, and the host is out of the loop.
PHASES.add(
    Phase(
        "2",
        "tokens drawn on the GPU",
        base="0",
        change={"sample": "gather"},
        seed_tokens_per_second=60.58,
    )
)
PHASES.add(
    Phase(
        "3",
        "a warp a row",
        base="2",
        change={"gemv_q4_0": "warp_per_row"},
        seed_tokens_per_second=66.29,
    )
)
PHASES.add(
    Phase(
        "4",
        "WQ, WK and WV side by side",
        base="3",
        change={},
        seed_tokens_per_second=56.8,
        verdict="revert",
        streams=3,
    )
)
PHASES.add(
    Phase(
        "5",
        "coalesced Q4_0",
        base="3",
        change={"gemv_q4_0": "coalesced"},
        seed_tokens_per_second=109.24,
    )
)
PHASES.add(
    Phase(
        "6",
        "gate, up and SwiGLU fused",
        base="5",
        change={"ffn_swiglu": "fused"},
        seed_tokens_per_second=111.98,
    )
)
PHASES.add(
    Phase(
        "7",
        "coalesced logits",
        base="6",
        change={"logits": "coalesced"},
        seed_tokens_per_second=143.46,
    )
)
PHASES.add(
    Phase(
        "8a",
        "values split over the warps",
        base="7",
        change={"attention": "split_values"},
        seed_tokens_per_second=135.61,  # at 300 tokens; phase 7's figure is at 166
    )
)
PHASES.add(
    Phase(
        "8b",
        "online softmax",
        base="8a",
        change={"attention": "online_softmax"},
        seed_tokens_per_second=151.48,
    )
)
# The seed saw no change from wider loads, and gave no figure; on an H200 they are worth 1.3 times.
PHASES.add(
    Phase(
        "8c",
        "float4 loads",
        base="8b",
        change={"gemv_q4_0": "float4", "ffn_swiglu": "float4", "logits": "float4"},
    )
)
# The seed's plan: Tensor Cores next, since they alone could close the gap to llama.cpp. Chapters 15 to 18 test that.
PHASES.add(
    Phase(
        "9a",
        "decode on Tensor Cores, through WMMA",
        base="8c",
        change={"gemv_q4_0": "wmma"},
        verdict="revert",
        planned=True,
    )
)
PHASES.add(
    Phase(
        "9b",
        "the same, unpacked in registers",
        base="8c",
        change={"gemv_q4_0": "mma", "ffn_swiglu": "mma"},
        planned=True,
    )
)
PHASES.add(
    Phase(
        "9c",
        "prompts in blocks on Tensor Cores",
        base="9b",
        change={
            "embedding_tokens": "copy_rows",
            "rmsnorm_tokens": "block",
            "gemm_q4_0": "mma",
            "rope_kv_tokens": "pair_per_thread",
            "attention_tokens": "mma",
            "swiglu_tokens": "elementwise",
            "embedding_batch": "copy_rows",
            "gemm_q4_0_batch": "split_depth",
            "rope_kv_batch": "pair_per_thread",
            "attention_batch": "online_softmax",
            "logits_batch": "shared_rows",
            "argmax_batch": "block",
            "advance_batch": "thread_per_sequence",
        },
        planned=True,
    )
)
# Past the seed: what bounds a token is bytes, instructions and waiting, and each phase takes one of them on. Chapters
# 19 to 22. One launch with barriers is no faster than the launches that it saves.
PHASES.add(
    Phase(
        "10",
        "weights in tiles, activations in int8",
        base="9c",
        change={"gemv_tiles": "columns", "ffn_tiles": "columns", "logits_q8_0": "columns"},
        planned=True,
    )
)
PHASES.add(
    Phase(
        "11",
        "five launches a layer",
        base="10",
        change={
            "norm_qkv": "fused",
            "gemv_add": "fused",
            "norm_ffn": "fused",
            "norm_logits": "fused",
        },
        planned=True,
    )
)
PHASES.add(
    Phase(
        "12",
        "attention split over the context",
        base="11",
        change={"attention_split": "mma", "attention_merge": "block_per_head"},
        planned=True,
    )
)
PHASES.add(
    Phase(
        "13a",
        "one launch for many tokens",
        base="12",
        change={"persistent": "grid_barriers"},
        verdict="revert",
        planned=True,
    )
)
PHASES.add(
    Phase(
        "13b",
        "one launch, messages in place of barriers",
        base="12",
        change={"persistent": "messages"},
        planned=True,
    )
)
PHASES.add(
    Phase(
        "13c",
        "weights that come while blocks wait",
        base="13b",
        change={"persistent": "bulk"},
        planned=True,
    )
)
