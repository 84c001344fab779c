from sovereign_lab.notebook.exercises import check


def side_by_side(launches):
    # A launch goes into the group behind the last one that holds something it must wait for.
    groups, group_of = [], []
    for i, launch in enumerate(launches):
        earliest = 0
        for j, earlier in enumerate(launches[:i]):
            must_wait = (
                earlier.writes & launch.reads
                or earlier.writes & launch.writes
                or earlier.reads & launch.writes
            )
            if must_wait:
                earliest = max(earliest, group_of[j] + 1)
        if earliest == len(groups):
            groups.append([])
        groups[earliest].append(i)
        group_of.append(earliest)
    return groups


check("06.1", side_by_side)
