"""Write what an audit leaves behind: a page, a dossier and files for machines."""

from softleak.present.difference import AuditDifference, difference, load_audit
from softleak.present.dossier import dossier_data, write_dossier
from softleak.present.machine import as_data, write_json, write_junit, write_sarif
from softleak.present.page import write_page

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
