"""Modules that every part may import: values, errors, names of classes, files, texts."""
