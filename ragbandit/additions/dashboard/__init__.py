"""The dashboard: pages for people in a browser, at /ui.

It reads headers of pages for a browser.
"""

from ragbandit.shared.additions import Addition

ADDITION = Addition(doors={"dashboard": "endpoints:DOOR"}, pages=("dashboard.md",))
