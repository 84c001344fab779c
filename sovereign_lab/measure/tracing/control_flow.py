"""The loops of a kernel, found in the basic blocks that a run went through.

A loop is what a back edge closes: an edge to a block that every path to its start passes through (a dominator). Its
body are the blocks from which the edge is reached without passing that header again. Aho, Lam, Sethi and Ullman,
Compilers (2nd edition), 9.6. Blocks are numbers; 0 comes before every thread's first one.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

Edge = tuple[int, int]


@dataclass(frozen=True)
class Flow:
    """By block: `loop`, the innermost loop that it lies in (-1: none); `header`, whether that loop starts with it;
    `branch`, whether more than one block was seen behind it; `order`, its place in an order in which a warp that comes
    together again after every branch could run. By loop, outer ones before inner: `parent` (-1: none), `depth` (1 for
    an outermost one), `start`, its header.
    """

    loop: list[int]
    header: list[bool]
    branch: list[bool]
    order: list[int]
    parent: list[int]
    depth: list[int]
    start: list[int]


def flow(blocks: int, edges: Collection[Edge]) -> Flow:
    """The loops among `blocks` basic blocks with these edges; every block can be reached from block 0."""
    after: list[list[int]] = [[] for _ in range(blocks)]
    before: list[list[int]] = [[] for _ in range(blocks)]
    for start, end in sorted(edges):
        after[start].append(end)
        before[end].append(start)
    ranked = _reverse_postorder(after)
    order = [0] * blocks
    for rank, block in enumerate(ranked):
        order[block] = rank
    dominator = _dominators(ranked, order, before)

    bodies: dict[int, set[int]] = {}
    for start, end in edges:
        if _dominates(end, start, dominator):
            bodies.setdefault(end, {end}).update(_reaching(start, end, before))
    # A loop inside another has fewer blocks; so the last to claim a block is its innermost one.
    starts = sorted(bodies, key=lambda h: (-len(bodies[h]), order[h]))
    loop = [-1] * blocks
    parent: list[int] = []
    depth: list[int] = []
    for index, start in enumerate(starts):
        parent.append(loop[start])
        depth.append(1 if loop[start] < 0 else depth[loop[start]] + 1)
        for block in bodies[start]:
            loop[block] = index
    header = [loop[b] >= 0 and starts[loop[b]] == b for b in range(blocks)]
    branch = [len(ends) > 1 for ends in after]
    branch[0] = False
    return Flow(loop, header, branch, order, parent, depth, starts)


def _reverse_postorder(after: list[list[int]]) -> list[int]:
    done, visited = [], {0}
    stack: list[tuple[int, Iterable[int]]] = [(0, iter(after[0][::-1]))]
    while stack:
        block, rest = stack[-1]
        for following in rest:
            if following not in visited:
                visited.add(following)
                stack.append((following, iter(after[following][::-1])))
                break
        else:
            done.append(block)
            stack.pop()
    return done[::-1]


def _dominators(ranked: list[int], order: list[int], before: list[list[int]]) -> dict[int, int]:
    """The immediate dominator of each block. Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm (2001)."""
    dominator = {0: 0}

    def meet(a: int, b: int) -> int:
        while a != b:
            while order[a] > order[b]:
                a = dominator[a]
            while order[b] > order[a]:
                b = dominator[b]
        return a

    changed = True
    while changed:
        changed = False
        for block in ranked[1:]:
            known = [b for b in before[block] if b in dominator]
            new = known[0]
            for other in known[1:]:
                new = meet(new, other)
            if dominator.get(block) != new:
                dominator[block] = new
                changed = True
    return dominator


def _dominates(a: int, b: int, dominator: dict[int, int]) -> bool:
    while b != a and b != 0:
        b = dominator[b]
    return a == b


def _reaching(end: int, header: int, before: list[list[int]]) -> set[int]:
    """Blocks from which `end` is reached without passing the header, `end` among them."""
    found, stack = {header}, [end]
    while stack:
        block = stack.pop()
        if block not in found:
            found.add(block)
            stack.extend(before[block])
    return found
