"""Pictures of the dashboard for its page, of a service with made-up traffic: `make screenshots`."""
