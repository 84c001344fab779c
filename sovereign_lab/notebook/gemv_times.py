"""The Q4_0 GEMV alone, at the shapes of a model: the chapter on coalesced access asks why a token got faster.

A token reads every matrix once, so a matrix is never in the cache when its turn comes. `stream` measures that:
launch after launch on another copy of the weights, more of them than a GPU's L2 holds. `repeat` measures the same
launch again and again, whose weights stay in the cache. Both replay one recording, so Python's launches do not count.

`python -m sovereign_lab.notebook.gemv_times FOLDER` keeps a run there as JSON.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sovereign_lab.devices import Device, open_device
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.bench import Figure
from sovereign_lab.measure.environment import environment
from sovereign_lab.models.model import Config, matrix_shapes
from sovereign_lab.models.quants import BLOCK_BYTES, BLOCK_WEIGHTS
from sovereign_lab.notebook.runs import Run
from sovereign_lab.notebook.seed import TINYLLAMA
from sovereign_lab.notebook.table import Table

# Twice the largest L2 of the GPUs that the lab names (50 MB on an H200, 96 MB on an RTX 5090).
STREAM_BYTES = 200_000_000
LAUNCHES = 200
REPEATS = 9


@dataclass(frozen=True)
class Shape:
    """A matrix shape, and how many matrices of it a token reads."""

    rows: int
    cols: int
    per_token: int

    @property
    def nbytes(self) -> int:
        """Bytes of one such matrix in Q4_0."""
        return self.rows * self.cols // BLOCK_WEIGHTS * BLOCK_BYTES

    def __str__(self) -> str:
        return f"{self.rows:,} x {self.cols:,}"


def shapes_of(config: Config) -> list[Shape]:
    """The distinct shapes of a model's layer matrices, most rows first."""
    shapes = list(matrix_shapes(config).values())
    return [Shape(*s, shapes.count(s) * config.layers) for s in sorted(set(shapes), reverse=True)]


def gemv_times(
    device: Device,
    variants: Mapping[str, Variant | str],
    shapes: Sequence[Shape],
    copies: int | None = None,
) -> list[Figure]:
    """Microseconds of a launch, for every shape and variant (a text is one with the launch geometry of `coalesced`).

    `copies`: of the weights, in place of as many as fill STREAM_BYTES. Raises LabError if a kernel fails.
    """
    figures = []
    for shape in shapes:
        count = copies or min(1000, -(-STREAM_BYTES // shape.nbytes))
        weights = _random_weights(device, shape, count)
        for name, chosen in variants.items():
            for what, sequence in (
                ("stream", weights),
                ("repeat", weights[:1] * (copies or LAUNCHES)),
            ):
                samples = _microseconds(device, chosen, shape, sequence)
                figures.append(Figure.of(f"gemv_q4_0 {name}, {shape}, {what}", "us", samples))
    return figures


def per_token(run: Run, variant: str) -> float:
    """Milliseconds that a token of the run's model spends in this variant: each shape's time, times its launches."""
    return sum(s.per_token * _stream(run, variant, s) for s in shapes_of(TINYLLAMA)) / 1e3


def token_table(run: Run, variants: Sequence[str]) -> Table:
    """By shape: launches a token, microseconds of one, and what that adds up to over a token."""
    head = [
        "matrix",
        "launches a token",
        *(f"{v}, one launch" for v in variants),
        *(f"{v}, a token" for v in variants),
    ]
    rows = []
    for shape in shapes_of(TINYLLAMA):
        each = [_stream(run, v, shape) for v in variants]
        rows.append(
            [
                str(shape),
                str(shape.per_token),
                *(f"{t:.1f} us" for t in each),
                *(f"{t * shape.per_token / 1e3:.2f} ms" for t in each),
            ]
        )
    rows.append(
        ["all", "", *[""] * len(variants), *(f"{per_token(run, v):.2f} ms" for v in variants)]
    )
    return Table(head, rows)


def counter_table(run: Run, variants: Sequence[str]) -> Table:
    """What the GPU's own counters said of a launch with cold caches, by shape and variant."""
    rows = []
    for shape in [
        Shape(512, 2048, 0),
        *reversed([s for s in shapes_of(TINYLLAMA) if s.rows > 512]),
    ]:
        for variant in variants:
            what = f"gemv_q4_0 {variant}, {shape}"
            rows.append(
                [
                    str(shape),
                    variant,
                    f"{run.value(f'{what}, load requests'):,.0f}",
                    f"{run.value(f'{what}, load sectors'):,.0f}",
                    f"{run.value(f'{what}, read from DRAM') / 1e6:.2f} MB",
                    f"{run.value(f'{what}, L1 throughput, of its peak'):.0f} %",
                ]
            )
    return Table(
        ["matrix", "variant", "load requests", "load sectors", "read from DRAM", "L1, of its peak"],
        rows,
    )


def _stream(run: Run, variant: str, shape: Shape) -> float:
    return run.value(f"gemv_q4_0 {variant}, {shape}, stream")


def _random_weights(device: Device, shape: Shape, count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (shape.rows, shape.nbytes // shape.rows), np.uint8)
    blocks.reshape(-1, BLOCK_BYTES)[:, :2] = np.array([0.01], np.float16).view(np.uint8)
    return [device.array(blocks) for _ in range(count)]


def _microseconds(
    device: Device, chosen: Variant | str, shape: Shape, weights: Sequence[Any]
) -> list[float]:
    """Per launch, over a recording of one launch for each of `weights`."""
    gemv = op("gemv_q4_0")
    variant = gemv.variant("coalesced") if isinstance(chosen, str) else chosen
    kernel = device.compile(chosen if isinstance(chosen, str) else chosen.path)
    x = device.array(np.random.default_rng(1).standard_normal(shape.cols, np.float32))
    y = device.empty(shape.rows, np.float32)
    with device.capture() as capture:
        for W in weights:
            args = {
                "W": W,
                "x": x,
                "y": y,
                "rows": shape.rows,
                "blocks_per_row": shape.cols // BLOCK_WEIGHTS,
            }
            device.launch(kernel, gemv.grid(variant, args), variant.threads, list(args.values()))
    samples = []
    for repeat in range(REPEATS + 1):
        with device.timer() as timer:
            capture.replay()
        if repeat:  # the first one warms up
            samples.append(timer.milliseconds * 1e3 / len(weights))
    return samples


def main() -> None:
    """Measure at the shapes of TinyLlama-1.1B, print, and keep the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the JSON file goes")
    parser.add_argument(
        "--also",
        type=Path,
        action="append",
        default=[],
        help="a kernel file to measure beside ours",
    )
    options = parser.parse_args()
    device = open_device()
    variants = {
        **op("gemv_q4_0").variants,
        **{path.stem: path.read_text() for path in options.also},
    }
    # 512 x 2,048: the shape at which the lab's counts were compared with a GPU's own counters.
    figures = gemv_times(device, variants, [*shapes_of(TINYLLAMA), Shape(512, 2048, 0)])
    for figure in figures:
        print(figure)
    facts = environment(device)
    path = options.folder / f"{facts['date']}-{device.properties.arch}-gemv_q4_0.json"
    run = {"environment": facts, "model": TINYLLAMA.name, "figures": [asdict(f) for f in figures]}
    path.write_text(json.dumps(run, indent=1) + "\n")
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
