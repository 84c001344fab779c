"""`make bench`: the lab's own speed, in figures with units. Prints; judges nothing.

On the SIMT device: a fiber switch, the Q4_0 GEMVs, a whole model. On a CUDA GPU: every phase of the ladder on a
model of TinyLlama's shape, against the floor that memory bandwidth sets. `--record` keeps the run under data/runs/.
"""

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from sovereign_lab.devices import Device, open_device
from sovereign_lab.devices.cuda import why_no_gpu
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.engine import PHASES, Engine
from sovereign_lab.kernels.registry import op
from sovereign_lab.measure.environment import environment
from sovereign_lab.measure.profile import op_ms
from sovereign_lab.measure.roofline import find_gpu, floor, token_bytes
from sovereign_lab.measure.sanitizer.cost import print_costs
from sovereign_lab.measure.timing import decode_ms
from sovereign_lab.models import reference
from sovereign_lab.models.model import Model, load_model
from sovereign_lab.models.quants import quantise_q4_0

# Every lane hands over to the next of its warp, again and again: the bare switch.
SWITCH = """
extern "C" __global__ void switches(int n) {
  for (int i = 0; i < n; i++) simt::switch_to(simt::current, simt::current->next_in_warp);
}
"""
# The same through CUDA's own barrier: a switch and what a meeting of 32 lanes takes.
SYNCWARP = (
    'extern "C" __global__ void syncwarps(int n) { for (int i = 0; i < n; i++) __syncwarp(); }'
)
GEMV_ROWS, GEMV_BLOCKS_PER_ROW = 512, 64


@dataclass(frozen=True)
class Figure:
    """One measured number: `low` and `high` bound the repeats, `value` is their median."""

    what: str
    value: float
    unit: str
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, what: str, unit: str, samples: list[float]) -> "Figure":
        """The median of some samples, and their range."""
        return cls(what, statistics.median(samples), unit, min(samples), max(samples), len(samples))

    def __str__(self) -> str:
        spread = f"({self.low:.4g} to {self.high:.4g}, n={self.repeats})"
        return f"{self.what:<58} {self.value:>10.4g} {self.unit:<8} {spread}"


def seconds(repeats: int, run: Callable[..., object], *args: object) -> list[float]:
    """Wall time of `run(*args)` after one warm-up, `repeats` times."""
    run(*args)
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(*args)
        samples.append(time.perf_counter() - start)
    return samples


def simt_figures() -> list[Figure]:
    """A switch and the GEMVs on one core, in ns and in million multiply-adds a second."""
    device = SimtDevice(workers=1)
    figures = []
    for what, source, n in (
        ("fiber switch", SWITCH, 100_000),
        ("__syncwarp, a lane", SYNCWARP, 50_000),
    ):
        kernel = device.compile(source)
        for threads in (32, 256, 1024):
            times = seconds(9, device.launch, kernel, 1, threads, [n * 32 // threads])
            each = [t * 1e9 / (n * 32) for t in times]
            figures.append(Figure.of(f"{what}, {threads} threads", "ns", each))
    gemv, rows, n = op("gemv_q4_0"), GEMV_ROWS, GEMV_BLOCKS_PER_ROW
    rng = np.random.default_rng(0)
    args = {
        "W": device.array(quantise_q4_0(rng.standard_normal((rows, n * 32), np.float32))),
        "x": device.array(rng.standard_normal(n * 32, np.float32)),
        "y": device.empty(rows, np.float32),
        "rows": rows,
        "blocks_per_row": n,
    }
    for name, variant in gemv.variants.items():
        kernel = device.compile(variant.path)
        grid = gemv.grid(variant, args)
        times = seconds(9, device.launch, kernel, grid, variant.threads, list(args.values()))
        rates = [rows * n * 32 / t / 1e6 for t in times]
        figures.append(Figure.of(f"gemv_q4_0 {name}, {rows} x {n * 32}, one core", "Mmac/s", rates))
    device.close()
    return figures


def decode_figures(
    model: Model, device: Device, phase: str, tokens: int, repeats: int
) -> list[Figure]:
    """Decode at short context: tokens/s and the share of the bandwidth floor, where the GPU's is known."""
    engine = Engine(model, device, phase)
    prompt = "Once upon a time"
    rates = []
    for repeat in range(repeats + 1):
        run = engine.stream(prompt, max_tokens=tokens)
        for _ in run:
            pass
        if repeat:
            rates.append(run.result.tokens_per_second)
    figures = [Figure.of(f"{model.config.name}, phase {phase}, decode", "tok/s", rates)]
    gpu = find_gpu(device.properties.name)
    if gpu:
        least = floor(token_bytes(model.config).at(tokens // 2), gpu)
        share = [100 * rate / least.tokens_per_second for rate in rates]
        what = f"  of its floor, {least.ms * 1e3:.0f} us by {gpu.bandwidth:.0f} GB/s ({gpu.origin})"
        figures.append(Figure.of(what, "%", share))
    return figures


def context_figures(
    model: Model, device: Device, phase: str, contexts: list[int], tokens: int
) -> list[Figure]:
    """Decode at longer contexts: ms a forward pass, the median of 5 runs of `tokens` tokens."""
    engine = Engine(model, device, phase)
    figures = []
    for context in contexts:
        decode_ms(engine, context, tokens)
        samples = [decode_ms(engine, context, tokens) for _ in range(5)]
        figures.append(Figure.of(f"  phase {phase}, at position {context}", "ms", samples))
    return figures


def op_figures(model: Model, device: Device, phase: str, position: int) -> list[Figure]:
    """Each op of a forward pass alone, us a token."""
    engine = Engine(model, device, phase)
    figures = []
    for name, launches in Counter(call[0] for call in engine.decode_calls).items():
        what = f"  phase {phase}, {name} x {launches}, at position {position}"
        figures.append(Figure.of(what, "us", [1e3 * ms for ms in op_ms(engine, name, position)]))
    return figures


def variant_figures(
    model: Model, device: Device, phase: str, name: str, positions: list[int]
) -> list[Figure]:
    """Every variant of one op in a phase's forward pass, alone, us a token: those in no phase too."""
    engine = Engine(model, device, phase)
    figures = []
    for variant in op(name).variants.values():
        kernel = device.compile(variant.path, {"KV": engine.kv.kernel_type})
        engine.kernels[name] = (variant, kernel)
        for position in positions:
            samples = [1e3 * ms for ms in op_ms(engine, name, position)]
            figures.append(
                Figure.of(f"  {name}:{variant.name}, at position {position}", "us", samples)
            )
    return figures


def accuracy_figures(model: Model, device: Device, phase: str) -> list[Figure]:
    """||d|| / ||reference|| of the logits of a few words: to the reference with the same KV type, and to FP32."""
    tokens = model.tokenizer.encode("The old lighthouse keeper looked out to sea")
    logits = Engine(model, device, phase).logits(tokens)
    figures = []
    for what, dtype in (
        ("to the same roundings", np.float16),
        ("to FP32", np.float32),
    ):
        expected = reference.forward(model, tokens, dtype)
        distance = float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))
        figures.append(Figure.of(f"  phase {phase}, logits {what}", "of norm", [distance]))
    return figures


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = "simt" if why_no_gpu() else "cuda"
    parser.add_argument("--device", choices=("simt", "cuda"), default=default)
    parser.add_argument(
        "--model", action="append", help="a catalog name or a path; may be repeated"
    )
    parser.add_argument(
        "--phase", action="append", help="may be repeated; all phases on a GPU, else 8b"
    )
    parser.add_argument("--tokens", type=int, help="tokens a measurement")
    parser.add_argument(
        "--record", type=Path, help="a folder: each model's run is kept there as JSON"
    )
    parser.add_argument(
        "--context",
        type=int,
        action="append",
        help="measure at this position, and each op alone at the first; may be repeated",
    )
    parser.add_argument(
        "--variants", metavar="OP", help="with --context: every variant of this op alone, too"
    )
    options = parser.parse_args()

    device = open_device(options.device)
    on_gpu = device.properties.kind == "cuda"
    names = options.model or (
        ["synthetic:tinyllama-1.1b"] if on_gpu else ["storyteller", "smollm2-135m"]
    )
    phases = options.phase or (list(PHASES) if on_gpu else ["8b"])
    tokens, repeats = options.tokens or (128 if on_gpu else 12), 5 if on_gpu else 3
    print(f"{device.properties.name}: {device.properties.times}")
    if not on_gpu:
        for figure in simt_figures():
            print(figure, flush=True)
        # Here, because it builds on this module, and brings numba.
        from sovereign_lab.measure.trial.cost import edit_figures

        if find_spec("numba"):  # there is none for Intel Macs
            from sovereign_lab.measure import prelude

            print(*prelude.figures(load_model("storyteller")), sep="\n", flush=True)
        print(*edit_figures(options.device), sep="\n", flush=True)
        print_costs()
    for name in names:
        model = load_model(name, progress=True)
        figures = []
        for phase in phases:
            new = decode_figures(model, device, phase, tokens, repeats)
            if options.context:
                new += context_figures(model, device, phase, options.context, tokens=32)
                new += op_figures(model, device, phase, options.context[0])
                if options.variants:
                    new += variant_figures(model, device, phase, options.variants, options.context)
            else:
                new += accuracy_figures(model, device, phase)
            print(*new, sep="\n", flush=True)
            figures += new
        if options.record:
            record(options.record, name, device, figures)
    if on_gpu and not (options.model or options.phase):
        # Here, because it is a command of its own (`python -m sovereign_lab.measure.decode`), and keeps runs itself.
        from sovereign_lab.measure import decode

        print(decode.run(device, names[0], progress=True))


def record(folder: Path, model: str, device: Device, figures: list[Figure]) -> None:
    """Keep a run as JSON: the figures, and what they were measured with."""
    facts = environment(device)
    slug = Path(model).stem if model.endswith(".gguf") else model.replace(":", "-")
    path = folder / f"{facts['date']}-{device.properties.arch}-{slug}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    run = {"environment": facts, "model": model, "figures": [asdict(f) for f in figures]}
    path.write_text(json.dumps(run, indent=1) + "\n")
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
