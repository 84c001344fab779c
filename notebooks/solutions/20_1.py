from sovereign_lab.notebook.exercises import check
from sovereign_lab.notebook.norm_gemv import STARTER

# A lane squares what it multiplies. The lanes of a row have all blocks between them, each once; so the three shuffles
# that bring a row's sum together bring its squares together, too. The root mean square is the same for every row.
mine = STARTER
for before, after in (
    ("  float sum = 0;\n", "  float sum = 0, squares = 0;\n"),
    (
        "    const float4* x4 = (const float4*)(x + block * 32);\n",
        "    const float4* x4 = (const float4*)(x + block * 32);\n"
        "    const float4* norm4 = (const float4*)(norm + block * 32);\n",
    ),
    (
        "      int w0 = (int)words[i];\n",
        """\
      squares += low.x * low.x + low.y * low.y + low.z * low.z + low.w * low.w;
      squares += high.x * high.x + high.y * high.y + high.z * high.z + high.w * high.w;
      float4 n = norm4[i], m = norm4[i + 4];
      low = make_float4(low.x * n.x, low.y * n.y, low.z * n.z, low.w * n.w);
      high = make_float4(high.x * m.x, high.y * m.y, high.z * m.z, high.w * m.w);
      int w0 = (int)words[i];
""",
    ),
    (
        "mask *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, mask);  // lanes of the same row\n",
        """\
mask *= 2) {  // lanes of the same row
    sum += __shfl_xor_sync(FULL_WARP, sum, mask);
    squares += __shfl_xor_sync(FULL_WARP, squares, mask);
  }
""",
    ),
    ("y[row] = sum;", "y[row] = sum * rsqrtf(squares / (blocks_per_row * 32) + eps);"),
):
    assert before in mine
    mine = mine.replace(before, after)

check("20.1", mine)
