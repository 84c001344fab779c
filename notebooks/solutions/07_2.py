from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check

coalesced = op("gemv_q4_0").variant("coalesced")
shuffled = """\
    float scale = lane == 0 ? __half2float(block->scale) : 0;
    scale = __shfl_sync(FULL_WARP, scale, 0);
"""
# All 32 lanes read the same two bytes: one request, one sector. The hardware hands it to all of them.
mine = """\
    float scale = __half2float(block->scale);
"""

check("07.2", coalesced.source.replace(shuffled, mine))
