"""Endpoints of the dashboard: all pages, and the files that they use."""

from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from ragbandit.router.api.ui.decisions import add_decision_pages
from ragbandit.router.api.ui.login import add_login
from ragbandit.router.api.ui.operation import add_operation_pages
from ragbandit.router.api.ui.overview import add_overview_pages
from ragbandit.router.api.ui.policies import add_policy_pages

#: scripts, styles and pictures of the pages
STATIC = Path(__file__).parent / "static"


def add_dashboard(app: FastAPI) -> None:
    """Put /ui on the app."""
    app.mount("/ui/static", StaticFiles(directory=STATIC), name="ui-static")
    add_login(app)
    add_overview_pages(app)
    add_decision_pages(app)
    add_operation_pages(app)
    add_policy_pages(app)
