"""Replies: one typed definition of every JSON reply of the service, with the meaning of each field below it.

The service builds its replies by them, /openapi.json and docs/http.md describe them, and the methods of the clients
return them. Importing them loads no package of weight.
"""
