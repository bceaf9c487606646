"""The conversion of an SVG picture to PNG, by a package that need not be installed."""

from __future__ import annotations

from importlib import import_module

from flowpregel.errors import ConfigurationError

SCALE = 2
"""The number of pixels for each unit of length of the SVG picture."""


def png_of(svg: str, background_color: str) -> bytes:
    """Return an SVG picture as PNG.

    Args:
        svg: The picture.
        background_color: The color behind the picture.

    Raises:
        ConfigurationError: No package that can convert the picture is installed.
    """
    try:
        resvg = import_module("resvg_py")
    except ImportError:
        return _png_by_cairo(svg, background_color)
    return bytes(
        resvg.svg_to_bytes(
            svg_string=svg,
            background=background_color,
            zoom=SCALE,
        )
    )


def _png_by_cairo(svg: str, background_color: str) -> bytes:
    try:
        cairo = import_module("cairosvg")
    # The package needs the C library cairo. If that is missing, the import raises an
    # OSError.
    except (ImportError, OSError) as error:
        raise ConfigurationError(
            "a PNG picture needs a package that converts SVG: pip install resvg-py "
            "(or cairosvg, and the library cairo); draw_svg(), draw_mermaid() and "
            "draw_ascii() need no other package"
        ) from error
    data: bytes = cairo.svg2png(
        svg.encode(),
        background_color=background_color,
        scale=SCALE,
    )
    return data
