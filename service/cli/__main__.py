"""Entry point of `python -m service.cli`, the same as `gramophone`."""

from service.cli.main import main

if __name__ == "__main__":
    main()
