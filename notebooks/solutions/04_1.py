from sovereign_lab.kernels.registry import op
from sovereign_lab.notebook.exercises import check

bisect = op("sample").variant("bisect")
line = "Kept kept = keep_top_p(logits, vocab, highest, top_p, partial);"
# exp(logit - highest) >= min_p, with the logarithm on both sides. The temperature comes later, as with top-p.
mine = "Kept kept = {highest + logf(top_p), vocab - 1};  // choice[1] is min_p now"

check("04.1", bisect.source.replace(line, mine))
