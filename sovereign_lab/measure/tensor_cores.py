"""Where Tensor Cores pay: products with 1 to 512 tokens, decode and prefill, with and without them; a run of it, kept.

python -m sovereign_lab.measure.tensor_cores --model synthetic:tinyllama-1.1b --device cuda --record run.json
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from sovereign_lab.devices import Device, open_device
from sovereign_lab.engine import Engine
from sovereign_lab.kernels.registry import Variant, op
from sovereign_lab.measure.compare import Comparison, compare, in_turn
from sovereign_lab.measure.environment import environment
from sovereign_lab.measure.nsight import TENSOR_CORES, count
from sovereign_lab.models.model import Config, load_model
from sovereign_lab.models.quants import BLOCK_WEIGHTS, join_q4_0

COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
COUNTED = 512  # tokens of the products whose counters are read
PROMPTS = (33, 129, 513, 2049)  # tokens; the last one of a prompt is decoded
BATCHED = tuple(f"gemm_q4_0:{name}" for name in op("gemm_q4_0").variants)
ONE_TOKEN = ("gemv_q4_0:coalesced", "gemv_q4_0:float4", "gemv_q4_0:wmma", "gemv_q4_0:mma")
REPEATS, LAUNCHES, ROUNDS = 7, 20, 7


@dataclass(frozen=True)
class Product:
    """Microseconds of one product y [count, rows] = x [count, cols] W^T, the median of some repeats, W not in the L2.

    A kernel of one token is launched once for each.
    """

    matrix: str
    rows: int
    cols: int
    kernel: str
    count: int
    us: float

    @property
    def tflops(self) -> float:
        """10^12 multiplications and additions a second, of those that the product needs."""
        return 2 * self.rows * self.cols * self.count / self.us / 1e6


@dataclass(frozen=True)
class Prefill:
    """Reading a prompt of `tokens` tokens but the last, which is decoded: ms a token, one by one against in blocks."""

    tokens: int
    comparison: Comparison

    @property
    def tokens_per_second(self) -> tuple[float, float]:
        """The medians: one by one, in blocks."""
        both = self.comparison.base_ms, self.comparison.change_ms
        one_by_one, in_blocks = (1e3 / statistics.median(samples) for samples in both)
        return one_by_one, in_blocks


@dataclass(frozen=True)
class TensorRun:
    """What was measured, on which machine (measure/environment.py) and of which model.

    `decode`: phases 9a and 9b against 8c. `counters`: by kernel, what Nsight Compute counted at the model's WQ and
    COUNTED tokens; empty, with the reason, where it could not.
    """

    environment: Mapping[str, str]
    model: str
    products: tuple[Product, ...]
    decode: tuple[Comparison, ...]
    prefill: tuple[Prefill, ...]
    counters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reason: str | None = None

    def us(self, matrix: str, kernel: str) -> dict[int, float]:
        """Count -> microseconds of a product."""
        return {p.count: p.us for p in self.products if (p.matrix, p.kernel) == (matrix, kernel)}

    def crossing(self, matrix: str, slower: str, faster: str) -> int | None:
        """The least measured count from which on `faster` takes less time than `slower`; None where it never does."""
        a, b = self.us(matrix, slower), self.us(matrix, faster)
        counts = sorted(set(a) & set(b))
        behind = [i for i, n in enumerate(counts) if b[n] >= a[n]]
        first = behind[-1] + 1 if behind else 0
        return counts[first] if first < len(counts) else None

    def write(self, path: Path) -> None:
        """Keep the run as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "TensorRun":
        """A run that `write` kept."""
        content = json.loads(path.read_text())
        return cls(
            content["environment"],
            content["model"],
            tuple(Product(**p) for p in content["products"]),
            tuple(Comparison.of(c) for c in content["decode"]),
            tuple(Prefill(p["tokens"], Comparison.of(p["comparison"])) for p in content["prefill"]),
            content["counters"],
            content["reason"],
        )

    def __str__(self) -> str:
        kernels = list(dict.fromkeys(p.kernel for p in self.products))
        lines = []
        for matrix in dict.fromkeys(p.matrix for p in self.products):
            one = next(p for p in self.products if p.matrix == matrix)
            lines += [f"{matrix}, {one.rows} x {one.cols}, us a product", _row("tokens", *kernels)]
            by_kernel = {k: self.us(matrix, k) for k in kernels}
            for n in dict.fromkeys(p.count for p in self.products if p.matrix == matrix):
                cells = (f"{of[n]:.1f}" if n in of else "" for of in by_kernel.values())
                lines.append(_row(str(n), *cells))
        lines += map(str, self.decode)
        for p in self.prefill:
            before, after = p.tokens_per_second
            lines.append(
                f"prefill of {p.tokens} tokens: {before:,.0f} tokens/s one by one, {after:,.0f} in blocks"
            )
        for kernel, values in self.counters.items():
            if (busy := values.get(TENSOR_CORES)) is not None:
                lines.append(
                    f"{kernel}: Tensor Cores busy {busy:.1f} % of the time, at {COUNTED} tokens"
                )
        return "\n".join(lines + ([f"no counters: {self.reason}"] if self.reason else []))


def _row(first: str, *cells: str) -> str:
    return first.rjust(6) + "".join(cell.rjust(24) for cell in cells)


# ---- products ----


def matrices(c: Config) -> dict[str, tuple[int, int]]:
    """Rows and columns of the four products of a layer, those with a common input as one."""
    return {
        "WQ, WK, WV": (c.q_dim + 2 * c.kv_heads * c.head_dim, c.dim),
        "WO": (c.dim, c.q_dim),
        "gate, up": (2 * c.ffn_dim, c.dim),
        "down": (c.dim, c.ffn_dim),
    }


def products(
    device: Device, config: Config, counts: Sequence[int] = COUNTS, progress: bool = False
) -> Iterator[Product]:
    """Time every kernel on every product of a layer, weights random."""
    sizes = matrices(config)
    bar = tqdm(total=len(sizes) * len(counts), desc="products", disable=not progress, leave=False)
    for name, (rows, cols) in sizes.items():
        copies = _copies(device, rows, cols)
        for n in counts:
            x = np.random.default_rng(n).standard_normal((n, cols), np.float32)
            for kernel in (*ONE_TOKEN, *BATCHED):
                yield Product(name, rows, cols, kernel, n, _us(device, kernel, copies, rows, x))
            bar.update()
    bar.close()


def _copies(device: Device, rows: int, cols: int) -> list[dict[str, Any]]:
    """So many random matrices, in both layouts, that the L2 cache does not hold what a launch reads."""
    nbytes = rows * cols * 18 // BLOCK_WEIGHTS
    wanted = max(1, min(LAUNCHES, -(-2 * (device.properties.l2_bytes or 0) // nbytes)))
    rng, blocks = np.random.default_rng(0), cols // BLOCK_WEIGHTS
    copies = []
    for _ in range(wanted):
        nibbles = rng.integers(0, 2**32, (rows, blocks * 4), np.uint32)
        scales = np.full((rows, (blocks + 1) // 2 * 2), (21.5 * cols) ** -0.5, np.float16)
        copies.append(
            {
                "nibbles": device.array(nibbles),
                "scales": device.array(scales),
                "W": device.array(join_q4_0(nibbles, scales[:, :blocks])),
            }
        )
    return copies


def _us(device: Device, name: str, copies: list[dict[str, Any]], rows: int, x: np.ndarray) -> float:
    which, _, variant_name = name.partition(":")
    variant: Variant = op(which).variant(variant_name)
    kernel = device.compile(variant.path)
    n, cols = x.shape
    y = device.empty((n, rows), np.float32)
    on_device = device.array(x if which == "gemv_q4_0" else x.astype(np.float16))
    common = dict(rows=rows, blocks_per_row=cols // BLOCK_WEIGHTS)

    def launch(copy: Mapping[str, Any]) -> None:
        if which == "gemv_q4_0":
            for i in range(n):
                args = dict(W=copy["W"], x=on_device[i], y=y[i], **common)
                device.launch(
                    kernel, op(which).grid(variant, args), variant.threads, list(args.values())
                )
        else:
            args = dict(
                nibbles=copy["nibbles"], scales=copy["scales"], x=on_device, y=y, **common, count=n, accumulate=0,
            )  # fmt: skip
            device.launch(
                kernel, op(which).grid(variant, args), variant.threads, list(args.values())
            )

    launches = max(1, LAUNCHES // n) if which == "gemv_q4_0" else LAUNCHES
    with device.capture() as capture:
        for i in range(launches):
            launch(copies[i % len(copies)])
    samples = []
    for i in range(REPEATS + 1):
        with device.timer() as timer:
            capture.replay()
        if i:  # the first one warms up
            samples.append(timer.milliseconds * 1e3 / launches)
    return statistics.median(samples)


# ---- decode and prefill ----


def prefills(engine: Engine, progress: bool = False) -> Iterator[Prefill]:
    """Prompts of random tokens at phases 8c and 9c, in turn."""
    base, change = engine.with_phase("8c"), engine.with_phase("9c")
    rng = np.random.default_rng(0)
    for tokens in tqdm(PROMPTS, "prefill", disable=not progress, leave=False):
        if tokens > engine.context:
            continue
        ids = rng.integers(0, engine.model.config.vocab, tokens).tolist()

        def ms(which: Engine, ids: list[int] = ids) -> float:
            rate = which.prefill(ids, len(ids))
            assert rate is not None
            return 1e3 / rate

        names, on = ("one by one", "in blocks"), engine.device.properties.name
        yield Prefill(tokens, in_turn(lambda: ms(base), lambda: ms(change), names, on, ROUNDS))


def run(device: Device, model: str, seconds: float = 60, progress: bool = False) -> TensorRun:
    """Everything of a TensorRun; `seconds` at most for the counters."""
    loaded = load_model(model, progress=progress)
    config = loaded.config
    found = tuple(products(device, config, progress=progress))
    engine = Engine(loaded, device, "8c", context=min(config.context, 2304), progress=progress)
    decode = tuple(compare(engine, "8c", phase) for phase in ("9a", "9b"))
    prefill = tuple(prefills(engine, progress))
    counted = count([*ONE_TOKEN, *BATCHED], config, seconds=seconds, tokens=COUNTED)
    return TensorRun(
        environment(device), config.name, found, decode, prefill, counted.values, counted.reason
    )


def main() -> None:
    """Parse the command line; print the run and keep it."""
    parser = argparse.ArgumentParser(description="Where Tensor Cores pay.")
    parser.add_argument("--device", choices=("cuda", "simt"), default="cuda")
    parser.add_argument("--model", default="synthetic:tinyllama-1.1b")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the run as JSON here")
    options = parser.parse_args()
    measured = run(open_device(options.device), options.model, progress=True)
    print(measured)
    if options.record:
        measured.write(options.record)


if __name__ == "__main__":
    main()
