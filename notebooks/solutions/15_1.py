from sovereign_lab.notebook.exercises import check


def tiles(rows, cols, tokens):
    # Tiles are whole in every direction: rows, the columns of x, and the depth along which a product is summed.
    def up(n):
        return -(-n // 16)

    products = up(rows) * up(tokens) * up(cols)
    return products, rows * cols * tokens / (products * 16**3)


check("15.1", tiles)
