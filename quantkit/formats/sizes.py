"""Text of file sizes."""


def format_size(num_bytes: int) -> str:
    """Return a file size in bytes, kB or MB.

    >>> format_size(24_100_000)
    '24.1 MB'
    """
    if num_bytes < 1e6:
        return f"{num_bytes} bytes" if num_bytes < 1e4 else f"{num_bytes / 1e3:.0f} kB"
    return f"{num_bytes / 1e6:.1f} MB"
