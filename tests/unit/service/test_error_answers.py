"""What clients are told of errors: the reason, and not where things lie."""

import pytest

from models.errors import FormatError, IntegrityError, InvalidInputError, ModelNotFoundError, RegistryError
from service.api_errors import error_body


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FormatError("/srv/models/lstm/config.json", "is damaged"), "config.json: is damaged"),
        (
            RegistryError("cannot read the registry /srv/models: denied"),
            "cannot read the registry models: denied",
        ),
        (
            ModelNotFoundError("no model 'a' in /srv/x/registry; there are: b"),
            "no model 'a' in registry; there are: b",
        ),
        (
            RegistryError(
                "cannot read s3://bucket/all/.profiles/a.json: Could not connect to the endpoint URL: "
                '"http://10.0.0.9:9000/bucket/all/.profiles/a.json"'
            ),
            "cannot read a.json: Could not connect to the endpoint URL: …",
        ),
        (
            RegistryError("cannot list s3://bucket/all: User: arn:aws:iam::12:user/ann is not authorized"),
            "cannot list all: User: … is not authorized",
        ),
        (IntegrityError("lstm/versions/1/a.bin differs"), "lstm/versions/1/a.bin differs"),
    ],
)
def test_folders_are_not_told(error, told):
    assert error_body(error).message == told


def test_what_the_client_itself_said_stays():
    assert error_body(InvalidInputError("stop is '/a/b/c'")).message == "stop is '/a/b/c'"
