"""Reports: the pages, charts and terminal tables of a replay."""
