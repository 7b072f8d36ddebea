"""This package writes what an audit leaves behind: a page, a dossier and files for machines."""

from softleak.report.difference import AuditDifference, difference, load_audit
from softleak.report.dossier_data import dossier_data
from softleak.report.dossier_page import write_dossier
from softleak.report.junit import write_junit
from softleak.report.machine import as_data, write_json
from softleak.report.page import write_page
from softleak.report.sarif import write_sarif

__all__ = [
    "AuditDifference",
    "as_data",
    "difference",
    "dossier_data",
    "load_audit",
    "write_dossier",
    "write_json",
    "write_junit",
    "write_page",
    "write_sarif",
]
