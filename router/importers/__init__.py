"""Importers: feedback that people, models and checks give in another system becomes feedback of ours.

Each reads one system by HTTP, page by page, from a cursor that moves in the transaction that keeps the page's feedback:
nothing is lost and nothing counted twice, wherever an import is cut off.
"""
