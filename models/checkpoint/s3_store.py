"""Object store on S3, `s3://`: any server that honours If-None-Match and If-Match on writes."""

import random
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import s3fs
from botocore.exceptions import BotoCoreError, ClientError
from fsspec.asyn import sync
from typing_extensions import override

from models.checkpoint.fsspec_store import FsspecStore
from models.checkpoint.stores import ConditionalStore, ObjectEntry, TaggedContent

R = TypeVar("R")
_WRITER = "writer"
_REFUSED = {404, 412}
_CONFLICT = 409
_PAUSE_S = 0.1
_MAX_SMALL_BYTES = 64 << 20


class S3Store(FsspecStore, ConditionalStore):
    """Objects below `s3://bucket/prefix`.

    Endpoint, region and keys come from the environment, as botocore and s3fs read it: AWS_ENDPOINT_URL,
    AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, roles, FSSPEC_S3_….
    """

    failures = (*FsspecStore.failures, BotoCoreError, ClientError, aiohttp.ClientError)

    @override
    def entries(self, folder: str = "") -> list[ObjectEntry]:
        prefix = self._key(f"{folder}/" if folder else "")
        # '/' sorts after '.' and before letters and digits, so this skips keys with a leading dot
        after = {} if folder else {"StartAfter": f"{prefix}/"}

        async def pages() -> list[ObjectEntry]:
            found: list[ObjectEntry] = []
            more: dict[str, Any] = after
            while True:
                page = await self._call("list_objects_v2", Prefix=prefix, **more)
                found += [
                    ObjectEntry(
                        entry["Key"][len(self._key("")) :],
                        entry["Size"],
                        entry["ETag"],
                        entry["LastModified"].timestamp(),
                    )
                    for entry in page.get("Contents", ())
                ]
                if not page.get("IsTruncated"):
                    return found
                more = {"ContinuationToken": page["NextContinuationToken"]}

        with self._report_errors("list", folder):
            return self._run_sync(pages)

    @override
    def read(self, key: str, num_bytes: int | None = None) -> TaggedContent | None:
        async def whole() -> TaggedContent:
            answer = await self._call("get_object", Key=self._key(key))
            try:
                if num_bytes is None and answer["ContentLength"] > _MAX_SMALL_BYTES:
                    raise ValueError(f"it has {answer['ContentLength']} bytes, more than {_MAX_SMALL_BYTES}")
                content, limit = b"", _MAX_SMALL_BYTES if num_bytes is None else num_bytes
                while part := await answer["Body"].read(limit - len(content)):  # may be less
                    content += part
                return TaggedContent(content, answer["ETag"])
            finally:
                answer["Body"].close()

        try:
            with self._report_errors("read", key):
                return self._run_sync(whole)
        except FileNotFoundError:
            return None

    @override
    def put(self, key: str, content: bytes) -> None:
        with self._report_errors("write", key):
            self._run_sync(self._call, "put_object", Key=self._key(key), Body=content)

    @override
    def upload(self, key: str, path: Path) -> None:
        with self._report_errors("write", key):
            size = path.stat().st_size
            self._invoke("put_file", str(path), self._path(key), num_bytes=size, max_concurrency=2)

    @override
    def delete(self, key: str) -> None:
        with self._report_errors("delete", key):
            self._run_sync(self._call, "delete_object", Key=self._key(key))

    @override
    def put_if_match(self, key: str, content: bytes, tag: str | None) -> bool:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        # stored too, to recognise an own write whose reply was lost
        writer = uuid.uuid4().hex
        arguments = {"Key": self._key(key), "Body": content, "Metadata": {_WRITER: writer}, **condition}
        with self._report_errors("write", key):
            for attempt in range(self._timeouts.attempts):
                try:
                    self._run_sync(self._call, "put_object", **arguments)
                except self.failures as error:
                    reply = error.__cause__.response if isinstance(error.__cause__, ClientError) else {}
                    status = reply.get("ResponseMetadata", {}).get("HTTPStatusCode")
                    if status == _CONFLICT:  # concurrent writes; maybe none succeeded
                        time.sleep(_PAUSE_S * (attempt + random.random()))
                        continue
                    if self._writer(key) != writer:
                        if status in _REFUSED:
                            return False
                        raise
                return True
            return self._writer(key) == writer

    def _writer(self, key: str) -> str | None:
        """Return the writer of a conditionally stored object."""
        try:
            answer = self._run_sync(self._call, "head_object", Key=self._key(key))
        except FileNotFoundError:
            return None
        written: str | None = answer["Metadata"].get(_WRITER)
        return written

    async def _call(self, method: str, **arguments: Any) -> Any:
        bucket = self._root.partition("/")[0]
        return await self._file_system._call_s3(method, Bucket=bucket, **arguments)  # noqa: SLF001 - S3's API

    def _run_sync(self, ask: Callable[..., Awaitable[R]], *given: Any, **options: Any) -> R:
        """Run a coroutine on the file system's event loop, with a call's timeout."""
        done: R = sync(self._file_system.loop, ask, *given, timeout=self._timeouts.call_s, **options)
        return done

    def _key(self, key: str) -> str:
        return f"{self._root}/{key}".partition("/")[2]

    @override
    def _open(self) -> Any:
        patience = self._timeouts
        file_system = s3fs.S3FileSystem(
            config_kwargs={
                "connect_timeout": patience.connect_s,
                "read_timeout": patience.read_s,
                "retries": {"mode": "standard", "total_max_attempts": patience.attempts},
            },
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        file_system.retries = 1  # botocore already retries
        return file_system
