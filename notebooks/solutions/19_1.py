from sovereign_lab.notebook.exercises import check


# A tile is four rows by all columns. Of each pair of blocks, eight blocks lie side by side, 16 bytes of nibbles each:
# the first block of all four rows, then the second one. Half a pair at the end of a row takes the room of a whole one.
# The scales follow behind, in the same order, 2 bytes each.
def place(row, column, blocks_per_row):
    pairs = (blocks_per_row + 1) // 2
    tile, r = row // 4, row % 4
    block, i = column // 32, column % 32
    number = block // 2 * 8 + block % 2 * 4 + r  # of this block among the tile's
    begins = tile * pairs * 8 * 18
    nibble = "low" if i < 16 else "high"
    return begins + number * 16 + i % 16, nibble, begins + pairs * 8 * 16 + number * 2


check("19.1", place)
