"""The report: what the router spent and at what quality, against always one arm; read from the log on demand."""
