"""The measures of the code are counted as they say."""

from benchmarks.measures import checkout


def tree(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_circles(tmp_path):
    """Files that import each other are a circle, also where an import stands in a function; type hints are not."""
    where = tree(
        tmp_path,
        {
            "router/first.py": "def late():\n    from ragbandit.router.second import x\n",
            "router/second.py": "from ragbandit.router.third import y\n",
            "router/third.py": "from ragbandit.router import first\n",
            "workers/hinted.py": "if TYPE_CHECKING:\n    from ragbandit.workers.hinting import z\n",
            "workers/hinting.py": "from ragbandit.workers.hinted import z\n",
        },
    )

    assert checkout.circles(where) == [["ragbandit.router.first", "ragbandit.router.second", "ragbandit.router.third"]]


def test_linked_folders_count_once(tmp_path):
    """The package's links to the parts of the product are not counted beside the parts."""
    where = tree(tmp_path, {"router/a.py": "x = 1\n", "ragbandit/__init__.py": ""})
    (where / "ragbandit" / "router").symlink_to("../router")

    assert [str(path.relative_to(where)) for path in checkout.product_files(where)] == [
        "ragbandit/__init__.py",
        "router/a.py",
    ]


def test_lines_of_code():
    """Docstrings, comments and blank lines are no code; a statement over two lines is two."""
    assert checkout.code_lines('"""Doc.\n\nMore."""\n\n# comment\nx = (\n    1)\n\ndef f():\n    """Doc."""\n') == 3
