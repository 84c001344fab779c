from sovereign_lab.notebook.exercises import check


def sectors(starts: list[int], size: int) -> int | None:
    """Distinct 32-byte sectors of one request; a lane's bytes may lie in more than one."""
    return len({byte // 32 for start in starts for byte in range(start, start + size)})


check("07.1", sectors)
