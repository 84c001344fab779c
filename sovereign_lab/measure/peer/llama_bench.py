"""Is our loop over llama.cpp as fast as llama.cpp's own? A run of `bench peer` against llama-bench on the same file.

    llama-bench -m FILE -fa 1 -ngl 99 -o jsonl ... >bench.jsonl
    python -m sovereign_lab.measure.peer.llama_bench run.json bench.jsonl

Exits with 1 where decode differs by more than 2 %, or nothing can be compared.
"""

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from sovereign_lab.measure.peer.run import PeerRun

ALLOWED = 0.02


@dataclass(frozen=True)
class Difference:
    """llama.cpp's median tokens/s in our loop and in llama-bench, at one context or length of prompt."""

    what: str
    tokens: int
    loop: float
    bench: float

    @property
    def share(self) -> float:
        """Above 0 where our loop is the faster one."""
        return self.loop / self.bench - 1

    @property
    def too_far(self) -> bool:
        """Decode alone is judged: llama-bench's own prefill spreads by more."""
        return self.what == "decode" and abs(self.share) > ALLOWED

    def __str__(self) -> str:
        return (
            f"{self.what:<8}{self.tokens:>7}: our loop {self.loop:,.1f} tok/s, llama-bench {self.bench:,.1f}, "
            f"{self.share:+.1%}{' (more than 2 %)' if self.too_far else ''}"
        )


def differences(run: PeerRun, lines: str) -> list[Difference]:
    """Each test that both made; `lines` is llama-bench's output as JSON lines, of one or more runs."""
    bench: dict[tuple[str, int], list[float]] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        test = json.loads(line)
        prompt, generated, depth = test["n_prompt"], test["n_gen"], test["n_depth"]
        if generated == run.decoded and not prompt:
            bench.setdefault(("decode", depth), []).extend(test["samples_ts"])
        elif prompt and not generated and not depth:
            bench.setdefault(("prefill", prompt), []).extend(test["samples_ts"])
    loop: dict[tuple[str, int], list[float]] = {}
    for point in run.points:
        rates = [1e3 / ms for ms in point.comparison.base_ms]
        loop.setdefault((point.what, point.tokens), []).extend(rates)
    return [
        Difference(*test, statistics.median(rates), statistics.median(bench[test]))
        for test, rates in loop.items()
        if test in bench
    ]


def main() -> None:
    """Parse the command line and print the differences."""
    parser = argparse.ArgumentParser(description="Our loop over llama.cpp against llama-bench.")
    parser.add_argument("run", type=Path, help="what `sovereign-lab bench peer --json` wrote")
    parser.add_argument("bench", type=Path, nargs="+", help="what `llama-bench -o jsonl` printed")
    options = parser.parse_args()
    lines = "\n".join(path.read_text() for path in options.bench)
    found = differences(PeerRun.read(options.run), lines)
    print("\n".join(map(str, found)) or "llama-bench ran none of the run's tests.")
    raise SystemExit(int(not found or any(d.too_far for d in found)))


if __name__ == "__main__":
    main()
