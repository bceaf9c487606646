"""What the tests of the page need; without the extra ``ui`` they are left out."""

from __future__ import annotations

from importlib.util import find_spec

missing = [
    name for name in ("starlette", "uvicorn", "websockets") if find_spec(name) is None
]
collect_ignore_glob = ["test_*.py"] if missing else []
if missing:
    print(f"the tests of the page are left out: {', '.join(missing)} not installed")
