"""Whether the hub of models and data sets can be reached: asked once, before a library asks six times for each file.

huggingface_hub (2.4) asks again after 1, 2, 4, 8 and 8 seconds, in two rounds, whatever the reason, and has no setting
for it: a name that cannot be resolved keeps a start waiting for a minute, also of what is in the cache. Here a
connection is tried twice; where there is none the libraries are told to work offline, so that what is cached is taken
at once and what is not is told in a sentence. Behind a proxy, and where ``HF_HUB_OFFLINE`` is set, nothing is tried.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import urllib.parse
import urllib.request

TRIES, SECONDS, WAIT = 2, 3.0, 1.0
OFFLINE = "HF_HUB_OFFLINE"
_asked: dict[str, str] = {}  # endpoint -> why it cannot be reached, empty where it can


def settle() -> None:
    """Call before a library looks for a name that is no folder of this machine; again it costs nothing."""
    if os.environ.get(OFFLINE) or urllib.request.getproxies():
        return
    from huggingface_hub import constants

    endpoint = constants.ENDPOINT
    if endpoint not in _asked:
        _asked[endpoint] = _refused(endpoint)
    if not _asked[endpoint]:
        return
    os.environ[OFFLINE] = "1"  # for libraries that are imported later, and children
    constants.HF_HUB_OFFLINE = True
    for name in ("datasets.config", "transformers.utils.hub"):
        if (module := sys.modules.get(name)) is not None and hasattr(module, OFFLINE):
            setattr(module, OFFLINE, True)


def reason(error: BaseException) -> str:
    """Why a name could not be loaded, in one line: that the hub is out of reach, or the error itself."""
    if not any(_asked.values()):
        return " ".join(str(error).split()) or type(error).__name__
    endpoint, why = next((place, why) for place, why in _asked.items() if why)
    return f"{endpoint} cannot be reached ({why}), and it is not among what this machine has downloaded before"


def _refused(endpoint: str) -> str:
    place = urllib.parse.urlsplit(endpoint)
    port = place.port or (80 if place.scheme == "http" else 443)
    why = ""
    for number in range(TRIES):
        if number:
            time.sleep(WAIT)
        try:
            socket.create_connection((place.hostname or "", port), timeout=SECONDS).close()
        except (OSError, UnicodeError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        else:
            return ""
    return why
