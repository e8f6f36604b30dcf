"""The same program: `python -m mithridate.cli`."""

from mithridate.cli import main

if __name__ == "__main__":
    main()
