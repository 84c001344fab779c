from sovereign_lab.notebook.double_offset import DOUBLE_OFFSET
from sovereign_lab.notebook.exercises import check

buggy = "    KV* key = keys + (size_t)pos * kv_dim;  // this position's slot\n"
# Both stores below add the position's offset; so the pointer must still be at slot 0. Taking the offset out of the
# two stores, and leaving this line, is as right.
mine = "    KV* key = keys;  // the stores go to this position's slot\n"

my_kernel = DOUBLE_OFFSET.source.replace(buggy, mine)
check("03.1", my_kernel)
