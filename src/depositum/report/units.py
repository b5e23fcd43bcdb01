"""Bytes and seconds in readable units."""


def format_bytes(count: float) -> str:
    """Bytes in binary units.

    >>> format_bytes(512), format_bytes(2048)
    ('512 B', '2.0 KiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Seconds as seconds, minutes or hours.

    >>> format_duration(5), format_duration(125), format_duration(7260)
    ('5.0 s', '2 min 5 s', '2 h 1 min')
    """
    if seconds < 59.95:  # anything above would be rounded to 60.0 s
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
