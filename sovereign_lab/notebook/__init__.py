"""What the notebooks call: pictures, source with highlighting, predictions, exercises, recorded runs.

What never goes in here: a measurement or a kernel that something other than a notebook could use.
"""
