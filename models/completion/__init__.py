"""What a text that is being typed goes on as: words and phrases, each with its probability."""
