"""The same program: `python -m mithridate`."""

from mithridate.cli import main

if __name__ == "__main__":
    main()
