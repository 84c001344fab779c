"""A GGUF file becomes a Model, in plain NumPy.

Here: files, quantisation, tokenizers, the catalog, and the reference forward pass. Never here:
kernels, devices, or anything that knows how a model will be run.
"""

from sovereign_lab.models.model import Config, Model, load_model

__all__ = ["Config", "Model", "load_model"]
