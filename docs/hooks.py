"""For mkdocs: puts the repository's own pages, examples and results on the site, and points links there.

Pages link as they must on a code host: relative to the file, out of docs/ where need be. Here such a link is turned
into the site's own; one to a file that is not on the site becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ["CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"]
FOLDERS = ["examples", "benchmarks/results"]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```)", flags=re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: Any) -> Files:
    """Add what lies outside of docs/."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).iterdir()) if path.is_file()]
    for path in [*(ROOT / name for name in PAGES), *found]:
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_others: Any) -> str:
    """A page whose links are the site's."""
    here = _in_repository(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        uri = _on_site(posixpath.normpath(posixpath.join(posixpath.dirname(here), target)))
        if files.get_file_from_path(uri) is None:
            return text
        relative = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{text}]({relative}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(part if index % 2 else _LINK.sub(link, part) for index, part in enumerate(parts))


def _in_repository(uri: str) -> str:
    return uri if uri in PAGES or uri.startswith(tuple(FOLDERS)) else f"docs/{uri}"


def _on_site(path: str) -> str:
    return "index.md" if path == "README.md" else path.removeprefix("docs/")
