"""What tests of rounds share."""

from __future__ import annotations

from typing import Any

import pytest

from flhe.training import mean_squares, session


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Takes down every decryption, wherever a session opens a sum."""
    events, real = list[str](), session.opener_for

    def opener_for(*args: Any, **kwargs: Any) -> Any:
        opener = real(*args, **kwargs)

        class Watched:
            def decrypt(self, total: Any) -> Any:
                events.append("decrypt")
                return opener.decrypt(total)

        return Watched()

    for module in (session, mean_squares):
        monkeypatch.setattr(module, "opener_for", opener_for)
    return events
