"""Coverage: how often intervals hold the truth, of every place that prints one (places.py) and of each method alone."""
