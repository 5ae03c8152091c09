"""Parts that do as little as their contracts allow, each with its test. `ragbandit skeleton` copies them."""
