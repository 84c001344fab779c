"""Panels and explorers in a notebook: controls in the page, and behind each a plain function that needs no page.

`widget.py` and `page.js` know controls, pictures and columns of text, and nothing of models. A module an explorer: the
facts as a frozen dataclass, the function that works them out, their picture as SVG, and `explore_...`, which puts
sliders before them. What never goes in: measuring, and anything that only a browser can show.
"""
