"""Sovereign Lab: learn how an LLM inference engine is made fast, kernel by kernel, on a model that speaks.

import sovereign_lab as sl
model = sl.load_model()
device = sl.open_device()
engine = sl.Engine(model, device, phase="8b")
engine.generate("Once upon a time", max_tokens=64).text
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sovereign_lab.checkup import doctor
    from sovereign_lab.devices import open_device
    from sovereign_lab.engine import PHASES, Engine, Generation
    from sovereign_lab.errors import LabError
    from sovereign_lab.measure.compare import compare
    from sovereign_lab.measure.experiment import experiment
    from sovereign_lab.measure.ledger import ledger
    from sovereign_lab.measure.mine import edit
    from sovereign_lab.measure.nsight import profile_kernel
    from sovereign_lab.measure.profile import profile
    from sovereign_lab.measure.sanitizer import sanitize
    from sovereign_lab.measure.static.analysis import static_analysis
    from sovereign_lab.models import load_model
    from sovereign_lab.notebook.magics import load_ipython_extension
    from sovereign_lab.notebook.microscope import inspect_kernel
    from sovereign_lab.notebook.panels.cache_writes import explore_cache_writes
    from sovereign_lab.notebook.panels.generation_panel import generation_panel
    from sovereign_lab.notebook.panels.kv_scaling import explore_kv_scaling
    from sovereign_lab.notebook.panels.q4_block import explore_q4_0_block
    from sovereign_lab.notebook.panels.timeline import explore_timeline
    from sovereign_lab.notebook.panels.warp import explore_warp
    from sovereign_lab.notebook.workbench import workbench

__version__ = "0.1.0"
__all__ = [
    "PHASES",
    "Engine",
    "Generation",
    "LabError",
    "compare",
    "doctor",
    "edit",
    "experiment",
    "explore_cache_writes",
    "explore_kv_scaling",
    "explore_q4_0_block",
    "explore_timeline",
    "explore_warp",
    "generation_panel",
    "inspect_kernel",
    "ledger",
    "load_ipython_extension",
    "load_model",
    "open_device",
    "profile",
    "profile_kernel",
    "sanitize",
    "static_analysis",
    "workbench",
]

_HOMES = {
    "Engine": "sovereign_lab.engine",
    "Generation": "sovereign_lab.engine",
    "LabError": "sovereign_lab.errors",
    "PHASES": "sovereign_lab.engine",
    "compare": "sovereign_lab.measure.compare",
    "doctor": "sovereign_lab.checkup",
    "load_ipython_extension": "sovereign_lab.notebook.magics",  # %load_ext sovereign_lab
    "edit": "sovereign_lab.measure.mine",
    "experiment": "sovereign_lab.measure.experiment",
    "ledger": "sovereign_lab.measure.ledger",
    "inspect_kernel": "sovereign_lab.notebook.microscope",
    "explore_cache_writes": "sovereign_lab.notebook.panels.cache_writes",
    "explore_kv_scaling": "sovereign_lab.notebook.panels.kv_scaling",
    "explore_q4_0_block": "sovereign_lab.notebook.panels.q4_block",
    "explore_timeline": "sovereign_lab.notebook.panels.timeline",
    "explore_warp": "sovereign_lab.notebook.panels.warp",
    "generation_panel": "sovereign_lab.notebook.panels.generation_panel",
    "load_model": "sovereign_lab.models",
    "open_device": "sovereign_lab.devices",
    "profile": "sovereign_lab.measure.profile",
    "profile_kernel": "sovereign_lab.measure.nsight",
    "sanitize": "sovereign_lab.measure.sanitizer",
    "static_analysis": "sovereign_lab.measure.static.analysis",
    "workbench": "sovereign_lab.notebook.workbench",
}


def __getattr__(name: str) -> Any:
    # Imported when first used: `sovereign-lab --help` need not wait for the engine.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
