"""`make release-check`: what must hold before a release is published."""
