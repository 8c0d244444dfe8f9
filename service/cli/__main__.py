"""`python -m service.cli`, the same as `gramophone`."""

from service.cli.program import main

if __name__ == "__main__":
    main()
