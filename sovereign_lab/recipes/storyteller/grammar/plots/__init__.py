"""One module per plot: its beats, and one function that puts them in order."""
