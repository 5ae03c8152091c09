"""The dashboard: pages for people in a browser, at /ui.

It reads request headers that only browsers send.
"""

from ragbandit.shared.additions import Addition

ADDITION = Addition(doors={"dashboard": "endpoints:DOOR"}, pages=("dashboard.md",))
