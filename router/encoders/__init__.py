"""Encoders turn a question into a feature vector; `weights` finds or downloads their models."""
