"""Large image folders from small ones."""

from pathlib import Path


def link_images(folder: Path, samples: int, links: Path) -> Path:
    """Create a folder with links to JPEG files; images of a small folder repeat with other names."""
    images = sorted(folder.glob("*.jpg"))
    links.mkdir()
    for number in range(samples):
        (links / f"{number:05}.jpg").symlink_to(images[number % len(images)].resolve())
    return links
