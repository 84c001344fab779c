from sovereign_lab.notebook.exercises import check


def estimate(card, load, context):
    # GB/s are 10^9 bytes a second: 1,000 bytes a microsecond for each.
    nbytes = load.layer_bytes + load.head_bytes + context * load.kv_bytes
    read_us = nbytes / (card.bandwidth * 1e3)
    wait_us = load.layers * card.layer_us + card.token_us
    return max(read_us, wait_us), read_us + wait_us


check("23.1", estimate)
