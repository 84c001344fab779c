"""What the sanitizer costs: `python -m sovereign_lab.measure.sanitizer.cost` prints a factor for every kernel.

CPU seconds of a sanitized launch over those of a plain one, on one worker each and the same arguments, at the shapes of
TinyLlama's first layer; the vocabulary is cut to 2,048 rows.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sovereign_lab.devices.device import Source, launch_shape
from sovereign_lab.devices.simt.device import SimtDevice
from sovereign_lab.kernels.registry import OPS, Op, Variant
from sovereign_lab.measure.sanitizer.cases import poisoned
from sovereign_lab.measure.sanitizer.run import Launch, run
from sovereign_lab.measure.workload import DEFINES, config_of, workload

REPEATS = 3
POSITION = 255
SHAPE = replace(
    config_of("synthetic:tinyllama-1.1b"),
    name="TinyLlama's shape, one layer, vocabulary of 2,048",
    layers=1,
    vocab=2048,
)


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds of one launch, the least of some repeats, plain and sanitized."""

    kernel: str
    plain_ms: float
    sanitized_ms: float

    @property
    def factor(self) -> float:
        """Sanitized over plain."""
        return self.sanitized_ms / self.plain_ms

    def __str__(self) -> str:
        return f"{self.kernel:<32} {self.plain_ms:>10.3f} {self.sanitized_ms:>12.3f} {self.factor:>8.1f}"


def costs() -> Iterator[Cost]:
    """The cost of every kernel of the registry."""
    plain, sanitized = SimtDevice(workers=1), SimtDevice(workers=1, build="sanitized")
    for op in OPS.values():
        for variant in op.variants.values():
            yield _cost(op, variant, plain, sanitized)
    plain.close()
    sanitized.close()


def _cost(op: Op, variant: Variant, plain: SimtDevice, sanitized: SimtDevice) -> Cost:
    args = workload(op, SHAPE, POSITION)
    source = Source.of(variant.path, DEFINES)
    grid, shared = op.grid(variant, args), variant.shared_bytes(args)
    written = {name: ~mask for name, mask in poisoned(op, args).items()}
    launch = Launch(
        source,
        *launch_shape(variant.name, grid, variant.threads),
        args,
        shared,
        variant.cooperative,
        written,
        timeout=300.0,
    )
    kernel, checked = plain.compile(source), sanitized.compile(source)
    arrays = list(plain.arguments(args).values())
    times = []
    for _ in range(REPEATS + 1):
        began = time.process_time()
        plain.launch(kernel, grid, variant.threads, arrays, shared, variant.cooperative)
        times.append((time.process_time() - began, run(sanitized, checked, launch).cpu_seconds))
    least = [min(column) * 1e3 for column in zip(*times[1:], strict=True)]
    return Cost(f"{op.name}:{variant.name}", *least)


def print_costs() -> None:
    """Print the table, line by line as it is measured."""
    print(f"sanitizer: {SHAPE.name}, position {POSITION}, one core, CPU ms of a launch")
    print(f"{'kernel':<32} {'plain':>10} {'sanitized':>12} {'factor':>8}")
    for cost in costs():
        print(cost, flush=True)


if __name__ == "__main__":
    print_costs()
