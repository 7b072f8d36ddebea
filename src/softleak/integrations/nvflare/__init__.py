"""This package holds softleak in NVIDIA FLARE: a filter for what a client is about to send.

This package needs the extra ``nvflare``: ``pip install '.[nvflare]'`` in a checkout of softleak.
"""

from softleak.errors import MissingExtra, how_to_install

try:
    import nvflare.apis.dxo_filter  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        f"softleak.integrations.nvflare needs NVIDIA FLARE: {how_to_install('nvflare')}"
    ) from error

from softleak.integrations.nvflare.leakage_filter import LeakageFilter

__all__ = ["LeakageFilter"]
