from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check

wide = op("gemv_q4_0").variant("float4")
bytewise = """\
    const unsigned char* bytes = blocks[b].nibbles + first_byte;
    float4 v = x4[b * 8 + lane % 8];
    float dot = (float)((bytes[0] >> shift & 15) - 8) * v.x + (float)((bytes[1] >> shift & 15) - 8) * v.y +
                (float)((bytes[2] >> shift & 15) - 8) * v.z + (float)((bytes[3] >> shift & 15) - 8) * v.w;
"""
# Blocks begin at multiples of 18 bytes, nibbles two bytes on, a lane's bytes at multiples of 4 from there: 2 divides
# all of them, and 4 does not. So 16 bits at a time. The first byte of a pair is its low one.
mine = """\
    const unsigned short* pairs = (const unsigned short*)(blocks[b].nibbles + first_byte);
    float4 v = x4[b * 8 + lane % 8];
    int p = pairs[0] >> shift, q = pairs[1] >> shift;
    float dot = (float)((p & 15) - 8) * v.x + (float)((p >> 8 & 15) - 8) * v.y +
                (float)((q & 15) - 8) * v.z + (float)((q >> 8 & 15) - 8) * v.w;
"""

check("12.1", wide.source.replace(bytewise, mine))
