from sovereign_lab.models.model import Config
from sovereign_lab.notebook.exercises import check


def kv_bytes(config: Config, positions: int, bytes_each: int) -> int | None:
    """Keys and values of all layers; query heads share KV heads, so only the latter count."""
    return config.layers * 2 * config.kv_heads * config.head_dim * bytes_each * positions


check("10.1", kv_bytes)
