"""The one exception type that is meant for a person: its text is the whole message."""


class LabError(Exception):
    """What was expected, what came, and what to do, in a sentence; the CLI prints it and exits with 1."""
