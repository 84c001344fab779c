"""How models of the lab were made, from data to file.

A recipe runs on a machine with a GPU and PyTorch, once; the lab itself needs neither. Never here:
anything that loading or running a model needs.
"""
