"""Operations of the service without HTTP, one module per endpoint family."""
