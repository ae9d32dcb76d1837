"""Write the JSON files of the zoo anew: ``python -m mmee_graphs [FOLDER]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from mmee_graphs.files import write_zoo


def main() -> None:
    """Write every graph, beside this module unless a folder is named."""
    parser = argparse.ArgumentParser(prog="python -m mmee_graphs", description=__doc__)
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(__file__).parent,
        help="where to write; the package itself if left out",
    )
    folder: Path = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f'"{folder}" is no folder; expected one that exists')
    print(f"{len(write_zoo(folder))} graphs written to {folder}")


if __name__ == "__main__":
    main()
