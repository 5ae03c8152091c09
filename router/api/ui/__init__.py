"""Dashboard: pages at /ui for the people who run a service, made on the server of what JSON tells too."""
