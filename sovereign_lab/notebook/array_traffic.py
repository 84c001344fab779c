"""A launch's traffic by array: what its requests ask for, and how much of the array that is once each."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sovereign_lab.errors import LabError
from sovereign_lab.measure.memory_trace import SECTOR_BYTES, Trace
from sovereign_lab.notebook.table import Table


@dataclass(frozen=True)
class ArrayTraffic:
    """Loads or stores of one array in global memory.

    `sectors` counts a sector once for every request that touches it, `distinct` once in all: the first is what the
    L1 cache handles, 32 bytes each; the second is the least that must come from further away.
    """

    requests: int
    sectors: int
    distinct: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors a request, the mean."""
        return self.sectors / self.requests

    @property
    def distinct_bytes(self) -> int:
        """Bytes of the array's sectors that are touched at all."""
        return self.distinct * SECTOR_BYTES


def array_traffic(traced: Trace, kind: str = "load") -> dict[str, ArrayTraffic]:
    """Traffic by array, those without any left out. `kind` is "load" or "store"; LabError for another."""
    if kind not in ("load", "store"):
        raise LabError(f"A request is a 'load' or a 'store'; got {kind!r}.")
    store = int(kind == "store")
    table, events = traced.requests_table, traced.events
    table = table[(table["shared"] == 0) & (table["store"] == store)]
    starts = events["address"][table["first"]]
    events = events[(events["shared"] == 0) & (events["store"] == store)]
    found = {}
    for name, base, nbytes in traced.arrays:
        mine = table[(starts >= base) & (starts < base + nbytes)]
        if not len(mine):
            continue
        touched = events[(events["address"] >= base) & (events["address"] < base + nbytes)]
        # An access is at most 16 bytes, so it lies in the sector of its first byte, of its last byte, or in both.
        ends = [touched["address"], touched["address"] + touched["size"] - 1]
        distinct = np.unique(np.concatenate(ends) // SECTOR_BYTES)
        found[name] = ArrayTraffic(len(mine), int(mine["sectors"].sum()), len(distinct))
    return found


def traffic_table(launches: Mapping[str, Trace]) -> Table:
    """Loads of each launch by array, then its stores: requests, sectors, and the bytes that are touched at all."""
    rows = []
    for launch, traced in launches.items():
        for kind, verb in (("load", "reads"), ("store", "writes")):
            for array, t in array_traffic(traced, kind).items():
                rows.append(
                    [
                        launch,
                        f"{verb} {array}",
                        f"{t.requests:,}",
                        f"{t.sectors:,}",
                        f"{t.sectors_per_request:.2f}",
                        f"{t.distinct_bytes:,}",
                    ]
                )
    head = ["launch", "array", "requests", "sectors", "sectors a request", "distinct bytes"]
    return Table(head, rows)
