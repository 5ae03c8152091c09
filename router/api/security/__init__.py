"""Security of the HTTP service: access rules, keys, roles, ownership, rates, budgets, and checks of web sites."""
