"""JupyterLab driven in headless Chromium: for the tests of the pages, `make bench` and the README's pictures.

Needs Playwright for Python (in the extra `test`) and a Chromium of the machine's own; nothing is downloaded. What a
learner uses never comes here, and nothing else of the package imports it.
"""
