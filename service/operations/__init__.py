"""Operations: the endpoints' work on requests, without HTTP; one file a topic."""
