"""``python -m sweeprof``."""

from sweeprof.app import main

if __name__ == "__main__":
    main()
