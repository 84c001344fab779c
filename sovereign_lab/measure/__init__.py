"""Numbers that can be trusted: bytes counted by hand, times with their spread, verdicts.

Here: what a token must cost, what it did cost, and whether two figures differ. Never here: drawing,
notebooks, or a kernel.
"""
