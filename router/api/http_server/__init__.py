"""The HTTP server: connections and their limits, bodies, threads."""
