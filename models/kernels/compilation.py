"""Compiled kernels: the decorator `kernel`, and a cache of their machine code in files.

A file has the code of one function for one list of argument types. Its name is a hash of all that
determines the code: function, types, processor level, versions of Python, numba and llvmlite, sources
and constants of the compiled modules that it uses. So a file is right or is not found, wherever and
whenever it was made, and concurrent processes write different files or equal ones. A damaged file is
compiled again.

Files are read from `PACKAGED`, which `gramophone precompile` fills, and from the user's folder,
where new ones are stored: NUMBA_CACHE_DIR, else `gramophone/kernels` in the user's cache folder.
They are machine code, so the user's folder is not read if a user other than root could have written
to it or replaced it.
"""

import functools
import hashlib
import importlib.metadata
import inspect
import logging
import os
import pickle
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_type_hints

import numba
import numpy as np

from models.files import replace_file
from models.kernels.target import LEVEL, config

F = TypeVar("F", bound=Callable[..., Any])

core: Any = numba.core  # most of it has no annotations
_log = logging.getLogger(__name__)
_compiling = threading.RLock()
_COMPILER = {"numba", "llvmlite"}
_DIGEST_BYTES = hashlib.sha256().digest_size
_VERSIONS = (
    sys.implementation.cache_tag,
    *(importlib.metadata.version(name) for name in ("numba", "llvmlite", "numpy")),
)

PACKAGED = Path(__file__).with_name("compiled")
"""This installation's kernels; may be missing or read-only."""

COMPILED_ELSEWHERE: dict[tuple[str, str], Future[None]] = {}
"""Kernels that other processes are compiling, by module and function, and the end of that."""


def stored_kernels() -> Path:
    """Return the folder where new kernels are stored."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    user_folder: Any = numba.misc.appdirs.user_cache_dir
    return Path(user_folder("gramophone", appauthor=False)) / "kernels"


def can_store_kernels() -> bool:
    """True if kernels can be stored; logs once why not."""
    folder = stored_kernels()
    try:
        for made in (folder.parent, folder):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        problem = _exposure(folder)
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        _report_unusable(folder, problem)
    return not problem


class Kernel(NamedTuple):
    """Kernel with declared argument types.

    Attributes:
        module: name of the function's module.
        function: name of the function.
        dispatcher: numba's dispatcher.
        signatures: signature of each version.
    """

    module: str
    function: str
    dispatcher: Any
    signatures: tuple[Any, ...]

    def compile(self, signatures: Iterable[Any]) -> None:
        """Compile versions, or read them from files; other types are errors from now on."""
        elsewhere = COMPILED_ELSEWHERE.get((self.module, self.function))
        if elsewhere is not None:
            wait([elsewhere])
        with _compiling:
            self.dispatcher.disable_compile(val=False)
            for signature in signatures:
                self.dispatcher.compile(signature)
            self.dispatcher.disable_compile()

    def is_stored(self, signature: Any) -> bool:
        """True if a file has the code of a version."""
        name = self.dispatcher._cache.file_name(signature)
        return any((folder / name).exists() for folder in _code_folders())


DECLARED: list[Kernel] = []
"""Kernels with declared types in the imported modules."""


def kernel(*signatures: Any, **options: Any) -> Callable[[F], F]:
    """Compile a function without the interpreter lock, at its first call, or read its code.

    Args:
        signatures: numba signatures of all versions; calls with other types are errors. Without any, the
            function is compiled for the types of each call.
        options: further options of `numba.njit`.
    """

    def decorated(function: F) -> F:
        compiled = numba.njit(nogil=True, **options)(function)
        compiled._cache = _CodeCache(function)
        if signatures:
            declared = Kernel(function.__module__, function.__qualname__, compiled, signatures)
            DECLARED.append(declared)
            # numba calls this for the function to call if no compiled version fits
            compiled._compile_for_args = functools.partial(_compiled_for_call, declared)
            # and this for the versions that another kernel may call
            template = compiled.get_call_template
            compiled.get_call_template = functools.partial(_template_for_kernel, declared, template)
        return cast("F", compiled)

    return decorated


def _compiled_for_call(declared: Kernel, *_arguments: Any) -> Any:
    declared.compile(declared.signatures)
    return declared.dispatcher


def _template_for_kernel(
    declared: Kernel, template: Callable[..., Any], arguments: Any, keywords: Any
) -> Any:
    """Offer declared versions only.

    A calling kernel's code must not depend on what was compiled before.
    """
    fitting = [signature for signature in declared.signatures if signature.args == tuple(arguments)]
    declared.compile(fitting or declared.signatures)
    return template(arguments, keywords)


def compile_declared(argument: Any) -> None:
    """Compile kernels with this type of first argument, or read them."""
    for declared in DECLARED:
        chosen = [signature for signature in declared.signatures if signature.args[:1] == (argument,)]
        if chosen:
            declared.compile(chosen)


def version_for(compiled: F, argument: Any) -> F:
    """Return the version of a kernel with this type of first argument, compiled.

    Its call skips the choice of the version, which takes longer than some kernels; other types are errors.
    """
    declared = next(one for one in DECLARED if one.dispatcher is compiled)
    signature = next(one for one in declared.signatures if one.args[0] == argument)
    if signature.args not in declared.dispatcher.overloads:
        declared.compile([signature])
    return cast("F", declared.dispatcher.get_overload(signature))


def tuple_type(cls: type[tuple[Any, ...]], *fields: Any) -> Any:
    """Return the numba type of a named tuple with fields of these types."""
    return core.types.NamedTuple(fields, cls)


def columns_type(cls: type[tuple[Any, ...]]) -> Any:
    """Return the numba type of a named tuple of arrays of one dimension, by their annotations."""
    dtypes = [np.dtype(get_args(get_args(hint)[1])[0]) for hint in get_type_hints(cls).values()]
    return tuple_type(cls, *(numba.from_dtype(dtype)[::1] for dtype in dtypes))


def _code_folders() -> list[Path]:
    """Return the folders of code: the package's, and the user's unless others may write there."""
    folder = stored_kernels()
    try:
        problem = _exposure(folder)
    except OSError:  # such as a missing folder: another user could make it
        return [PACKAGED]
    if problem:
        _report_unusable(folder, problem)
    return [PACKAGED] if problem else [PACKAGED, folder]


def _exposure(folder: Path) -> str:
    """Return how others than this user and root could change a path's content; else empty.

    Raises:
        OSError: nothing is at the path, or it cannot be found out.
    """
    folder.stat()  # fails for links in a circle, which the loop would follow for ever
    pending = [folder.absolute()]
    for path in pending:
        facts = path.lstat()
        is_shared = path != pending[0] and facts.st_uid == 0 and facts.st_mode & stat.S_ISVTX  # such as /tmp
        if facts.st_uid not in {0, os.geteuid()}:
            return f"{path} belongs to another user, who could run code in this process"
        if stat.S_ISLNK(facts.st_mode):
            pending.append(path.parent / path.readlink())
        elif facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_shared:
            return f"other users can write to {path}, and so run code in this process"
        if path.parent not in pending:
            pending.append(path.parent)
    return ""


class _CodeCache:
    """Cache of one function's code: what numba's dispatcher asks of its caches."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def file_name(self, signature: Any) -> str:
        """Return the file name of the code for a signature."""
        arguments, _ = core.sigutils.normalize_signature(signature)
        function = f"{self._function.__module__}.{self._function.__qualname__}"
        key = (function, [str(given) for given in arguments], LEVEL.name, _codegen_key(), _VERSIONS)
        digest = hashlib.sha256(repr(key).encode() + _sources_digest(self._function.__module__))
        return f"{function}-{digest.hexdigest()[:32]}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled code for a signature; None if there is no valid file."""
        target_context.refresh()
        name = self.file_name(sig)
        for folder in _code_folders():
            try:
                content = (folder / name).read_bytes()
            except OSError:
                continue
            if hashlib.sha256(content[_DIGEST_BYTES:]).digest() == content[:_DIGEST_BYTES]:
                code = pickle.loads(content[_DIGEST_BYTES:])
                return core.compiler.CompileResult._rebuild(target_context, *code)
            _log.warning("%s is damaged: the kernel is compiled again", folder / name)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store compiled code, or log once why not."""
        if data.library.has_dynamic_globals:
            return  # it has addresses of this process
        code = core.serialize.dumps(data._reduce())
        if not can_store_kernels():
            return
        folder = stored_kernels()
        try:
            replace_file(folder / self.file_name(sig), hashlib.sha256(code).digest(), code)
        except OSError as error:
            _report_unusable(folder, error.strerror)


@functools.cache
def _report_unusable(folder: Path, problem: str) -> None:
    _log.warning(
        "compiled kernels cannot be stored in %s (%s): every start compiles them again; set NUMBA_CACHE_DIR to another "
        "folder",
        folder,
        problem,
    )


@functools.cache
def _codegen_key() -> Any:
    """Return numba's description of the target.

    Its processor is not the level's if numba was used before.
    """
    from numba.core.registry import cpu_target

    return cpu_target.target_context.codegen().magic_tuple()


@functools.cache
def _sources_digest(name: str) -> bytes:
    """Hash sources and constants of a module and the compiled modules that it uses."""
    digest = hashlib.sha256()
    for module in sorted(_compiled_modules(sys.modules[name]), key=lambda module: module.__name__):
        digest.update(inspect.getsource(module).encode())
        digest.update(repr(sorted(_constants(module))).encode())
    return digest.digest()


def _compiled_modules(module: ModuleType) -> set[ModuleType]:
    """Return a module and the modules with compiled functions that it uses."""
    found: set[ModuleType] = set()
    pending = [module]
    while pending:
        one = pending.pop()
        if one not in found and any(map(_is_from_numba, vars(one).values())):
            found.add(one)
            pending += _used_modules(one)
    return found


def _is_from_numba(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", "")
    return name.partition(".")[0] in _COMPILER


def _used_modules(module: ModuleType) -> Iterator[ModuleType]:
    for value in vars(module).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and name in sys.modules and name.partition(".")[0] not in _COMPILER:
            yield sys.modules[name]


def _constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield names and values of a module's constants, and the fields of its named tuples."""
    for name, value in vars(module).items():
        if isinstance(value, type) and hasattr(value, "_fields"):
            yield name, repr(value._fields)
        elif name.isupper() and _is_simple(value):
            yield name, repr(value)


def _is_simple(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_simple, value))
    return isinstance(value, bool | int | float | str | bytes | np.generic)
