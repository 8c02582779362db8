"""What does ``python -m trnprof`` run? The same as ``trnprof``."""

from trnprof.cli.main import main

if __name__ == "__main__":
    main()
