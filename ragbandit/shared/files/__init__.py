"""Files: written whole or not at all; folders and URLs; JSON lines."""
