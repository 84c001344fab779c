from sovereign_lab.notebook.exercises import check


def whose(row, weight):
    # The low nibbles of a block are its first 16 weights, the high ones the other 16: a product each.
    product, k = divmod(weight, 16)
    # Eight rows of four lanes; rows 8 apart have the same. Along a row a lane holds two neighbours, and those 8 on.
    lane = row % 8 * 4 + k % 8 // 2
    register = row // 8 + k // 8 * 2
    return lane, product, register, k % 2


check("16.1", whose)
