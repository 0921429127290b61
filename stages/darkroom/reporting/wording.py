"""Numbers as people read them."""

from __future__ import annotations


def percent(share: float | str | None, decimals: int = 2) -> str:
    return "–" if share in (None, "") else f"{float(share):.{decimals}%}"


def number(value: float | None, digits: int = 4) -> str:
    """For people: whole numbers and large ones with thin spaces between thousands, others with so many digits."""
    if value is None:
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.{digits}g}"


def size(num_bytes: int) -> str:
    power = next((power for power in range(3) if num_bytes < 1000 ** (power + 1)), 3)
    return f"{num_bytes / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB')[power]}"


def duration(seconds: float) -> str:
    """90 s, 12 min, 3.4 h."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
