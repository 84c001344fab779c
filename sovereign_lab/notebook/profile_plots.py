"""Pictures of a profile: every launch of a forward pass on a line of time, and each op's share of the pass."""

from collections import Counter

import plotly.graph_objects as go

from sovereign_lab.measure.profile import Profile
from sovereign_lab.notebook.plots import BLUE, SERIES, TEXT, VERMILLION, styled

REST = "the rest"
HOW = {
    "cuda": "events between launches without a graph: launch overhead is in every bar",
    "simt": "wall time of a CPU that imitates a GPU",
}


def timeline(profile: Profile) -> go.Figure:
    """Every launch of one forward pass: a row an op in the order in which they first come, a bar a launch.

    Neighbouring rows differ in colour; what a bar's length holds stands in the title.
    """
    counts = Counter(launch.op for launch in profile.timeline)
    # Microseconds for a pass that lasts less than 10 ms.
    end = max(launch.start_us + launch.us for launch in profile.timeline)
    unit, scale = ("us", 1.0) if end < 10_000 else ("ms", 1e-3)
    figure = go.Figure()
    for i, (name, count) in enumerate(counts.items()):
        mine = [launch for launch in profile.timeline if launch.op == name]
        label = f"{name} x {count}"
        figure.add_bar(
            y=[label] * count, x=[scale * launch.us for launch in mine], orientation="h",
            base=[scale * launch.start_us for launch in mine], marker={"color": SERIES[i % 3], "line_width": 0},
            customdata=[[launch.variant, scale * launch.start_us] for launch in mine],
            hovertemplate=f"{name}:%{{customdata[0]}}<br>from %{{customdata[1]:.4g}} {unit} on, "
            f"%{{x:.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    labels = [f"{name} x {count}" for name, count in counts.items()]
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=labels[::-1], showgrid=False
    )
    figure.update_xaxes(title_text=f"{unit} from the start of the pass", range=[0, scale * end])
    figure.update_layout(showlegend=False, barmode="overlay", bargap=0.25)
    title = (
        f"One forward pass, launch by launch<br><sub>{profile.title}<br>{HOW[profile.kind]}</sub>"
    )
    figure = styled(figure, title, height=180 + 26 * len(labels))
    return figure.update_layout(margin={"l": 140, "t": 100})


def op_shares(profile: Profile) -> go.Figure:
    """Each op's time alone as a share of the whole pass, and what is left of it: the rest is drawn below 0 if it is."""
    shares = {f"{row.op} x {row.launches}": row.share for row in profile.ops}
    shares[REST] = profile.rest_us / profile.pass_us
    times = [row.us for row in profile.ops] + [profile.rest_us]
    figure = go.Figure()
    figure.add_bar(
        y=list(shares), x=[100 * share for share in shares.values()], orientation="h",
        marker_color=[VERMILLION if name == REST else BLUE for name in shares],
        text=[f"{share:.1%}" for share in shares.values()], textposition="outside", cliponaxis=False,
        textfont={"color": TEXT}, customdata=times,
        hovertemplate="%{y}: %{x:.3g} %, %{customdata:,.4g} us<extra></extra>",
    )  # fmt: skip
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=list(shares)[::-1], showgrid=False
    )
    figure.update_xaxes(title_text="% of the whole pass")
    title = f"Every op alone, as a share of the pass<br><sub>{profile.title}</sub>"
    figure = styled(figure, title, height=160 + 26 * len(shares))
    return figure.update_layout(showlegend=False, bargap=0.25, margin={"l": 140, "r": 60, "t": 80})
