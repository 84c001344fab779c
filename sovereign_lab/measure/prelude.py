"""The steps of the CPU prelude, timed: `python -m sovereign_lab.measure.prelude [--model NAME] [--record FOLDER]`.

A step's figures: tokens a second of decode, the milliseconds of a pass that its products take, and the floor that
this machine's memory sets. The steps take turns, so that a busy moment does not fall on one of them alone.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sovereign_lab.measure.bench import Figure
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.prelude import STEPS, CpuRunner, Step
from sovereign_lab.prelude.bandwidth import MEMORY_BYTES, floor_ms, read_bandwidth
from sovereign_lab.prelude.gemv import Product
from sovereign_lab.prelude.steps import token_bytes

PROMPT = "Once upon a time"
MEMORY = "memory, read by all threads"


def decode(step: Step) -> str:
    """The name of a step's speed among the figures, in tok/s."""
    return f"step {step.id}, {step.title}, decode"


def products(step: Step) -> str:
    """The name of the time that a step's products take of a forward pass, in ms."""
    return f"  step {step.id}, all products of a forward pass"


def floor(step: Step) -> str:
    """The name of a step's floor, in ms."""
    return f"  step {step.id}, floor by the memory's speed"


def timed(step: Step, seconds: list[float]) -> Step:
    """The same step, whose products append the seconds that each took."""

    def clocked(product: Product) -> Product:
        def run(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            start = time.perf_counter()
            y = product(x)
            seconds.append(time.perf_counter() - start)
            return y

        return run

    return replace(
        step,
        gemv=lambda matrix: clocked(step.gemv(matrix)),
        head=lambda weights: clocked(step.head(weights)),
    )


def figures(
    model: Model,
    steps: Sequence[Step] = STEPS,
    tokens: int = 16,
    repeats: int = 3,
    memory_bytes: int = MEMORY_BYTES,
) -> list[Figure]:
    """The figures of some steps. Products are timed in a run of their own, so that the clock is not in the speed."""
    memory = [read_bandwidth(memory_bytes, repeats=1) for _ in range(5)]
    found = [Figure.of(MEMORY, "GB/s", memory)]
    context = min(128, model.config.context)
    runners = {step: CpuRunner(model, step, context) for step in steps}
    rates: dict[Step, list[float]] = {step: [] for step in steps}
    for _ in range(repeats):
        for step, runner in runners.items():
            rates[step].append(runner.generate(PROMPT, tokens).tokens_per_second)
    del runners
    for step in steps:
        seconds: list[float] = []
        runner = CpuRunner(model, timed(step, seconds), context)
        spent = []
        for position in range(max(1, tokens // 2)):
            seconds.clear()
            runner.logits_of(runner.hidden(1, position))
            spent.append(1e3 * sum(seconds))
        least = floor_ms(token_bytes(model.config, step), max(memory))
        found += [
            Figure.of(decode(step), "tok/s", rates[step]),
            Figure.of(products(step), "ms", spent),
            Figure.of(floor(step), "ms", [least]),
        ]
    return found


def environment() -> dict[str, str]:
    """What the figures were measured with, and how busy the machine was: its load average of the last minute."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": f"{_processor()}, {cores} cores",
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "load_before": f"{os.getloadavg()[0]:.2f}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="a catalog name or a path")
    parser.add_argument("--tokens", type=int, default=16, help="tokens a measurement")
    parser.add_argument("--record", type=Path, help="a folder in which the run is kept as JSON")
    options = parser.parse_args()
    facts = environment()
    print(f"{facts['device']}, load {facts['load_before']}")
    found = figures(load_model(options.model, progress=True), tokens=options.tokens)
    print(*found, sep="\n")
    if options.record:
        slug = Path(options.model).stem
        path = options.record / f"{facts['date']}-cpu-{slug}.json"
        run = {
            "environment": facts,
            "model": options.model,
            "figures": [asdict(figure) for figure in found],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run, indent=1) + "\n")
        print(f"recorded in {path}")


if __name__ == "__main__":
    main()
