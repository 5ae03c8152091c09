"""Linear policies: closed-form heads over the encoder's features."""
