"""Operations of the service without HTTP, one module per endpoint family.

Public functions that return `Work` are use cases.
"""
