"""Types of all JSON replies. /openapi.json contains the descriptions below the fields."""
