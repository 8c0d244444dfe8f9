"""Entry point of `python -m service.cli`, equivalent to `gramophone`."""

from service.cli.main import main

if __name__ == "__main__":
    main()
