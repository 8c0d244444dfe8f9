"""The only names that appear on the wire; requests are parsed here once, into commands."""
