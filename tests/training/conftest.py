"""What tests of rounds share."""

from __future__ import annotations

from typing import Any

import pytest

from flhe.sums import secure_sum


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Takes down every decryption, wherever a sum is opened."""
    events, real = list[str](), secure_sum.opener_for

    def opener_for(*args: Any, **kwargs: Any) -> Any:
        opener = real(*args, **kwargs)

        class Watched:
            def decrypt(self, total: Any) -> Any:
                events.append("decrypt")
                return opener.decrypt(total)

        return Watched()

    monkeypatch.setattr(secure_sum, "opener_for", opener_for)
    return events
