"""Checks values against the part of JSON Schema that our OpenAPI document uses; more strictly: no field is unnamed."""

from collections import defaultdict

IGNORED = {"title", "description", "default", "examples", "format", "required"}
"""What says nothing about a value, or is looked at with `properties`."""

TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
BOUNDS = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "minLength": lambda value, bound: len(value) >= bound,
    "maxLength": lambda value, bound: len(value) <= bound,
    "minItems": lambda value, bound: len(value) >= bound,
    "maxItems": lambda value, bound: len(value) <= bound,
    "minProperties": lambda value, bound: len(value) >= bound,
    "maxProperties": lambda value, bound: len(value) <= bound,
    "const": lambda value, bound: value == bound,
    "enum": lambda value, bound: value in bound,
}


class MismatchError(AssertionError):
    """A value is not what its schema says; the message says where."""


class Checker:
    """Checks values against schemas of a document.

    Args:
        document: what references lead into.
    """

    def __init__(self, document):
        self.document = document

    def check(self, value, schema, place="$"):
        """The names that objects with declared fields have, by place, items of lists together.

        Raises:
            MismatchError: the value is not what the schema says.
        """
        names = defaultdict(set)
        self._check(value, schema, place, names)
        return dict(names)

    def resolve(self, reference):
        """What a reference leads to.

        Raises:
            KeyError: nothing.
        """
        found = self.document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step.replace("~1", "/").replace("~0", "~")]
        return found

    def _check(self, value, schema, place, names):
        if "type" in schema:  # first, as the others take it for granted
            self._type(value, schema["type"], place)
        for keyword, said in schema.items():
            if keyword in BOUNDS:
                if not BOUNDS[keyword](value, said):
                    raise MismatchError(f"{place} is {value!r}: {keyword} is {said!r}")
            elif keyword in KEYWORDS:
                KEYWORDS[keyword](self, value, schema, place, names)
            elif keyword not in {"type", *IGNORED}:
                raise MismatchError(f"{place}: the checker does not know the keyword {keyword}")

    def _reference(self, value, schema, place, names):
        self._check(value, self.resolve(schema["$ref"]), place, names)

    def _type(self, value, said, place):
        if not isinstance(value, TYPES[said]) or (isinstance(value, bool) and said != "boolean"):
            raise MismatchError(f"{place} is {value!r}, which is no {said}")

    def _any_of(self, value, schema, place, names):
        failures = []
        for alternative in schema["anyOf"]:
            found = defaultdict(set)
            try:
                self._check(value, alternative, place, found)
            except MismatchError as failure:
                failures.append(str(failure))
            else:
                for at, some in found.items():
                    names[at] |= some
                return
        raise MismatchError(f"{place} is none of its alternatives: {failures}")

    def _items(self, value, schema, place, names):
        for item in value:
            self._check(item, schema["items"], f"{place}[]", names)

    def _free_fields(self, value, schema, place, names):
        if isinstance(schema["additionalProperties"], dict):
            for field in value.values():
                self._check(field, schema["additionalProperties"], f"{place}.*", names)

    def _object(self, value, schema, place, names):
        known = schema["properties"]
        names[place] |= set(value)
        if missing := set(schema.get("required", ())) - set(value):
            raise MismatchError(f"{place} lacks {sorted(missing)}")
        if unknown := set(value) - set(known):
            raise MismatchError(f"{place} has {sorted(unknown)}, which its schema does not name")
        for name, field in value.items():
            self._check(field, known[name], f"{place}.{name}", names)


KEYWORDS = {
    "$ref": Checker._reference,
    "anyOf": Checker._any_of,
    "items": Checker._items,
    "properties": Checker._object,
    "additionalProperties": Checker._free_fields,
}
"""What looks at the value for each keyword."""
