"""Fine-tuned policies: an encoder trained together with its head, or on a labelled table."""
