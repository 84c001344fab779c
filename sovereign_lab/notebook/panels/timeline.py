"""`sl.explore_timeline`: one forward pass, launch by launch; choose an op and see its share."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from sovereign_lab.engine import Engine
from sovereign_lab.errors import LabError
from sovereign_lab.measure.profile import Profile, profile
from sovereign_lab.notebook.panels.controls import Choice, Control, Values
from sovereign_lab.notebook.panels.svg import (
    BLUE,
    FAINT,
    ORANGE,
    line,
    picture,
    rect,
    tag,
    text,
)
from sovereign_lab.notebook.panels.widget import NARROW, WIDE, Drawing, Exploration, Explorer
from sovereign_lab.notebook.places import in_checkout

ROW = 26


def recorded_profiles() -> dict[str, Profile]:
    """Profiles under data/runs/, by phase, the earliest first: forward passes on an H200."""
    paths = sorted(in_checkout("data/runs").glob("*-profile.json"))
    return {found.phase: found for found in map(Profile.load, paths)}


def draw_timeline(profile: Profile, op: str, width: int = WIDE) -> Drawing:
    """A row an op in the order in which they come first, a bar a launch, the chosen op in orange; its share below.

    Raises LabError for an op that is not in the pass.
    """
    counts = Counter(launch.op for launch in profile.timeline)
    rows = {row.op: row for row in profile.ops}
    if op not in counts or op not in rows:
        raise LabError(f"The pass has {', '.join(counts)}; got {op!r}.")
    end = max(launch.start_us + launch.us for launch in profile.timeline)
    unit, scale = ("us", 1.0) if end < 10_000 else ("ms", 1e-3)
    left, right = (124 if width > NARROW else 112), width - 8
    across = (right - left) / end
    parts: list[str] = []
    for i, (name, count) in enumerate(counts.items()):
        parts.append(_row(profile, name, count, name == op, i * ROW, left, right, across))
    bottom = len(counts) * ROW + 4.0
    parts.append(line(left, bottom, right, bottom))
    for quarter in range(5):
        at = end * quarter / 4
        anchor = {0: "start", 4: "end"}.get(quarter, "middle")
        if width > NARROW or quarter % 2 == 0:
            parts.append(
                text(
                    left + at * across,
                    bottom + 16,
                    f"{scale * at:,.0f}" if scale * end >= 100 else f"{scale * at:.3g}",
                    anchor,
                    11,
                )
            )
    parts.append(
        text((left + right) / 2, bottom + 34, f"{unit} from the start of the pass", "middle", 11)
    )
    row = rows[op]
    facts = [
        ["op", f"{op}, kernel {row.variant}, {row.launches} launch{'es' if row.launches > 1 else ''}"],
        ["alone", f"{scale * row.us:,.4g} {unit} of a pass of {scale * profile.pass_us:,.4g} {unit}: {row.share:.1%}"],
        ["reads and writes at least", f"{row.bytes / 1e6:,.3f} MB"],
    ]  # fmt: skip
    if profile.kind == "cuda":
        facts.append(["that is", f"{row.gb_per_s:,.0f} GB/s"])
    if row.floor_share is not None and profile.gpu is not None:
        facts.append(
            [f"of the floor ({profile.gpu.name}, {profile.gpu.origin})", f"{row.floor_share:.1%}"]
        )
    note = f"{profile.title}. Times: {profile.times}. {profile.method}"
    label = f"Timeline of a forward pass; {op} takes {row.share:.1%} of it"
    return Drawing(picture(parts, width, bottom + 42, label, role="group"), facts, note)


def _row(
    profile: Profile, name: str, count: int, chosen: bool, y: float, left: float, right: float, across: float
) -> str:  # fmt: skip
    """A row as a button: its name, and all its launches in one path, since a pass has hundreds."""
    share = next(row.share for row in profile.ops if row.op == name)
    said = f"{name}, {count} launches, {share:.1%} of the pass"
    bars = "".join(
        f"M{left + launch.start_us * across:.1f},{y + 6:.0f}h{max(launch.us * across, 0.6):.1f}v14h-"
        f"{max(launch.us * across, 0.6):.1f}z"
        for launch in profile.timeline
        if launch.op == name
    )
    inner = (
        tag("title", escape(said))
        + rect(1, y + 1, right - 2, ROW - 2, fill=ORANGE if chosen else "transparent", class_="sl-frame",
               fill_opacity=0.14 if chosen else None, stroke="none")
        + text(left - 6, y + 17, f"{name} x {count}", "end", 11, font_weight="bold" if chosen else None)
        + line(left, y + ROW, right, y + ROW, stroke=FAINT, stroke_opacity=0.4)
        + tag("path", d=bars, fill=ORANGE if chosen else BLUE)
    )  # fmt: skip
    return tag(
        "g", inner, data_pick="op", data_value=name, role="button", tabindex=0 if chosen else -1,
        aria_pressed=str(chosen).lower(), aria_label=said,
    )  # fmt: skip


# ---- the explorer ----


def explore_timeline(source: Profile | Engine | Sequence[Profile] | None = None) -> Explorer:
    """Click an op's row, or go to it with the arrow keys.

    `source`: a profile or several; an engine, whose pass is measured here first (the text in its KV cache is lost);
    without one, the profiles that were recorded on an H200. Raises LabError as `sl.profile` does.
    """
    if isinstance(source, Engine):
        found = [profile(source)]
    elif isinstance(source, Profile):
        found = [source]
    else:
        found = list(source or recorded_profiles().values())
    profiles = {str(i): p for i, p in enumerate(found)}

    def controls(values: Values) -> list[Control]:
        chosen = profiles[values["profile"]] if values["profile"] in profiles else found[-1]
        ops = [(row.op, f"{row.op}, {row.share:.1%}") for row in chosen.ops]
        names = [(key, f"phase {p.phase}: {p.model} on {p.device}") for key, p in profiles.items()]
        return [Choice("profile", "Forward pass", names), Choice("op", "Op", ops)]

    def follow(before: Values, sent: Values) -> Values:
        """Another pass may not have the op: then the one that takes the longest is chosen."""
        if sent["profile"] == before["profile"] or sent["profile"] not in profiles:
            return sent
        ops = [row.op for row in profiles[sent["profile"]].ops]
        return sent if sent["op"] in ops else {**sent, "op": _longest(profiles[sent["profile"]])}

    def draw(values: Values, width: int) -> Drawing:
        return draw_timeline(profiles[values["profile"]], values["op"], width)

    return Explorer(
        Exploration(
            name="timeline",
            title="A forward pass, launch by launch",
            start={"profile": list(profiles)[-1], "op": _longest(found[-1])},
            controls=controls,
            draw=draw,
            follow=follow,
        )
    )


def _longest(profile: Profile) -> str:
    return max(profile.ops, key=lambda row: row.us).op
