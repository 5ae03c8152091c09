"""Types of all JSON replies of the service. The text below a field describes it.

The service and the clients use these types; /openapi.json and docs/http.md are generated from them. Importing them
loads no large package.
"""
