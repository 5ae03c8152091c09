"""Endpoints: the routes of the service, except those of OpenAI's clients and the pages."""
