"""Encoders: a question becomes a feature vector; where model weights come from."""
