"""This package writes what an audit leaves behind: a page and a file for machines."""

from softleak.report.machine import as_data, write_json
from softleak.report.page import write_page

__all__ = ["as_data", "write_json", "write_page"]
