"""Both kinds of long keystreams, for tests of what they make."""

from __future__ import annotations

import pytest

from flhe.math import aes_kernels, keystream

KINDS = [
    pytest.param(keystream.OpenSsl, id="OpenSSL"),
    pytest.param(
        keystream.Vaes,
        id="VAES",
        marks=pytest.mark.skipif(not aes_kernels.able(), reason="no vector AES here"),
    ),
]
