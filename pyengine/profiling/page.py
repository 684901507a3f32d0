"""The report as one HTML page that needs nothing but itself: ``page.html`` with the values in it.

What is drawn is drawn by the script in the page, as SVG.
"""

from pathlib import Path

import msgspec

from pyengine.profiling.report import ProfileReport

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = "/*REPORT*/ null"


def page(report: ProfileReport) -> str:
    """The page of ``report``."""
    # In a script element, "</" and "<!--" would end or change it.
    data = msgspec.json.encode(report).decode().replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace(PLACE, data)
