"""Answers that workers give: asked for, waited for, cancelled, and asked for again."""
