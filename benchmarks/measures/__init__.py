"""How large and how deep the code is."""
