"""Whom the service trusts beyond loopback, and by what its drivers know it: the file that CA_BUNDLE names."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from elastrain.service.settings import SettingsError

_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# a driver gets them in its environment, where one variable has 128 KiB at most
MOST_CHARACTERS = 100_000


def certificates(file: str) -> str:
    """The certificates in a file, in PEM, and nothing else that it says. Raises SettingsError."""
    try:
        blocks = _BLOCK.findall(Path(file).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"ELASTRAIN_CA_BUNDLE={file!r} cannot be read: {error}") from None
    text = "\n".join(blocks)
    if not text:
        raise SettingsError(f"ELASTRAIN_CA_BUNDLE={file!r} holds no certificates; give a file in PEM")
    try:
        ssl.create_default_context(cadata=text)
    except ssl.SSLError as error:
        raise SettingsError(f"ELASTRAIN_CA_BUNDLE={file!r} holds none that is sound: {error}") from None
    return text


def for_drivers(file: str | None, driver_url: str) -> str:
    """What a driver is given to know the service by. Ray shows it to whoever may ask; it is no secret.

    Empty where the service is called without TLS, or with a certificate that every machine trusts.
    Raises SettingsError.
    """
    if file is None or not driver_url.startswith("https:"):
        return ""
    text = certificates(file)
    if len(text) > MOST_CHARACTERS:
        raise SettingsError(
            f"ELASTRAIN_CA_BUNDLE={file!r} holds {len(text)} characters of certificates, and drivers can be "
            f"given {MOST_CHARACTERS}: name a file with those that sign for ELASTRAIN_DRIVER_URL and Ray only"
        )
    return text
