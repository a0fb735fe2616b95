"""NCCL's words on connections that it could not make, for the patterns of signs."""

from __future__ import annotations

from typing import Final

TO_THE_LAST: Final = r"(?!.*retrying(?! \((?P<tries>\d+)/(?P=tries)\)))"
"""Not of a try that others follow: "retrying (3/34)". After the last of all NCCL gives up, which it needn't be able to log any more."""
FAILED: Final = r"onnect(?: to (?P<address>[\w.:%]+)<\d+>)? (?:failed|returned)" + TO_THE_LAST
"""With the address, or without, as reported in public of releases before 2.27."""
