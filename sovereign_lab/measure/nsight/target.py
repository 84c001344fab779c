"""What runs under ncu: every kernel of a job launched once. `python -m sovereign_lab.measure.nsight.target JOB`.

JOB is the JSON file that `nsight.count` writes. One line of JSON a kernel goes to the file that the job names, so that
whoever reads the counters knows which launch was which: the function's name, or why it was not launched.
"""

import json
import sys
import time
from pathlib import Path

from sovereign_lab.devices import Device, open_device
from sovereign_lab.errors import LabError
from sovereign_lab.kernels.registry import find_kernel
from sovereign_lab.measure.workload import COUNT, DEFINES, workload
from sovereign_lab.models.model import Config


def launch_once(
    name: str, device: Device, config: Config, position: int, seed: int, tokens: int = COUNT
) -> str:
    """Launch "op:variant" on its workload and wait for it; the name of the function in its source."""
    which, variant = find_kernel(name)
    host = workload(which, config, position, seed, tokens)
    kernel = device.compile(variant.path, DEFINES)
    args = list(device.arguments(host).values())
    device.synchronize()
    device.launch(
        kernel,
        which.grid(variant, host),
        variant.threads,
        args,
        variant.shared_bytes(host),
        variant.cooperative,
    )
    device.synchronize()
    return kernel.name


def main(path: Path, device: Device | None = None) -> None:
    """Do a job; a kernel that fails is reported, and the next one launched.

    Behind the job's `seconds` nothing more is launched, so that ncu can still write down what it has counted.
    """
    end = time.monotonic()
    job = json.loads(path.read_text())
    end += job["seconds"]
    device = device or open_device("cuda")
    config = Config(**job["config"])
    with Path(job["launched"]).open("a", buffering=1) as report:
        for name in job["kernels"]:
            line = {"kernel": name}
            try:
                if time.monotonic() > end:
                    raise LabError("there was no time left to launch it; give ncu more seconds.")
                line["function"] = launch_once(
                    name, device, config, job["position"], job["seed"], job["tokens"]
                )
            # One kernel that cannot run must not cost the others their counters.
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error}"
            report.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
