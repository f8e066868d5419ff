"""Runs on the driver. The page that shows the runs below a root in a browser, while they go on."""

from sparkdl.runs.ui.server import Page, serve

__all__ = ["Page", "serve"]
