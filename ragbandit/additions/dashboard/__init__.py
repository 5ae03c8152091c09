"""The dashboard: pages for people in a browser, at /ui.

The door also reads headers that show whether a browser sends the request.
"""

from ragbandit.shared.additions import Addition

ADDITION = Addition(doors={"dashboard": "endpoints:DOOR"}, pages=("dashboard.md",))
