"""The HTTP interface on the site: Swagger UI with the service's OpenAPI document inside, read without a network."""

import shutil
from pathlib import Path
from typing import Any

from fastapi.openapi.docs import get_swagger_ui_html
from swagger_ui_bundle import swagger_ui_path

from ragbandit.router.api.app import create_app


def write_api(folder: Path) -> None:
    """Write api.html, the script and the styles that it loads, and openapi.json into a folder of the site."""
    api = create_app(_never).openapi()
    script, styles = "swagger-ui-bundle.js", "swagger-ui.css"
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="RagBandit: HTTP",
        swagger_js_url=script,
        swagger_css_url=styles,
        swagger_favicon_url="data:,",
        # A browser that reads the page from a disk may not load openapi.json.
        swagger_ui_parameters={"spec": api, "supportedSubmitMethods": []},
    )
    (folder / "api.html").write_bytes(bytes(page.body))
    for name in (script, styles):
        shutil.copy(Path(swagger_ui_path) / name, folder / name)


def _never() -> Any:
    raise AssertionError("the page opens no Router")
