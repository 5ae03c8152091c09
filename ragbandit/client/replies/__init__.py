"""Types of all JSON replies. /openapi.json and docs/http.md contain the descriptions below the fields."""
