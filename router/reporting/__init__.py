"""The report: cost and quality of the served answers, compared with always using one arm; computed on demand."""
